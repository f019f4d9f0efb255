// The script of a live page. It replaces parts as they change, asks for rows of peers as they come into view, opens
// numbers, peers and samples in their places, and gives orders with the token that the address ended with.
// Invariants: the page can be read without it; it asks nobody but its own program; names and messages are put in as
// text, and markup comes only from the program; the token is kept in memory and in this tab alone; what somebody reads,
// opened or types is not replaced under their eyes.
"use strict";

(() => {
  const root = document.documentElement;
  const main = document.getElementById("main");
  const connection = document.getElementById("connection");
  const said = document.getElementById("said");
  let revision = Number(main.dataset.revision) || 0;
  let over = false;

  root.classList.add("js");
  if (!("revision" in main.dataset)) return; // a piece of the page, alone in a tab

  // The token: from the address once, then from this tab.
  let token = "";
  const given = /^#token=([\w-]+)$/.exec(location.hash);
  try {
    token = given ? given[1] : sessionStorage.getItem("volery-token") || "";
    if (given) sessionStorage.setItem("volery-token", token);
  } catch { token = given ? given[1] : ""; }
  if (given) history.replaceState(null, "", location.pathname + location.search);

  const headers = (more = {}) => (token ? { Authorization: `Bearer ${token}`, ...more } : more);
  const GONE = "The program does not answer.";
  const send = (path, options = {}) => fetch(path, { ...options, headers: headers({ "X-Part": "1", ...options.headers }) });
  const ask = (path, options) => send(path, options).catch(() => new Response(GONE, { status: 503 }));
  const say = (text) => { said.textContent = text; };
  const warn = (text) => {
    if (connection.textContent !== text) connection.textContent = text;
    connection.hidden = !text;
  };

  // Markup comes from our own program alone, which escapes what strangers wrote.
  const element = (html) => {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    return holder.content.firstElementChild;
  };

  // A part that changes is patched: elements stay, and with them what the reader opened, typed, focused and scrolled to.
  // That costs a browser less than new elements, too: Chromium 140 remembers something of each <thead> for ever.
  const patch = (old, fresh) => {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) { old.replaceWith(fresh); return; }
    if (old.nodeType !== Node.ELEMENT_NODE) { old.data = fresh.data; return; }
    const isTyped = old.nodeName === "INPUT" && old.value !== old.defaultValue;
    const isOpen = old.nodeName === "DETAILS" && old.open;
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !(isOpen && OPENED.has(name))) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    if (old.nodeName === "INPUT" && !isTyped) old.value = old.defaultValue;
    if ("filled" in old.dataset) return; // numbers that are read
    const before = [...old.childNodes].filter((one) => one.nodeName !== "OUTPUT"), after = [...fresh.childNodes];
    after.forEach((one, place) => {
      if (place < before.length) patch(before[place], one); else old.insertBefore(one, old.querySelector(":scope > output"));
    });
    for (const one of before.slice(after.length)) one.remove();
  };
  const OPENED = new Set(["open", "data-filled"]); // attributes of opened <details>
  let pressed = null; // between the press of a button and its click
  const isRead = (part) => {
    const selection = getSelection();
    if (selection && !selection.isCollapsed && part.contains(selection.anchorNode)) return true;
    if (pressed && part.contains(pressed)) return true;
    const active = document.activeElement;
    return Boolean(active && active.matches("form input") && part.contains(active));
  };
  const waiting = new Map();
  const catchUp = () => { for (const [id, html] of [...waiting]) replace(id, html); };
  const replace = (id, html) => {
    const before = document.getElementById(id);
    if (!before || !main.contains(before) || "asked" in before.dataset) return;
    if (isRead(before)) { waiting.set(id, html); return; }
    waiting.delete(id);
    const after = element(html);
    if (id === "peers" && peers && refreshPeers(after)) return;
    swap(before, after);
  };
  const swap = (before, after) => {
    for (const one of after.querySelectorAll("time[datetime]")) localTime(one);
    if (!after.querySelector("#live-peers")) { patch(before, after); return; }
    before.replaceWith(after);
    equip(after);
  };
  document.addEventListener("selectionchange", catchUp);
  document.addEventListener("focusout", () => setTimeout(catchUp));
  for (const kind of ["pointerdown", "keydown"]) document.addEventListener(kind, (event) => { pressed = event.target; });
  for (const kind of ["pointerup", "pointercancel", "keyup", "blur"]) {
    addEventListener(kind, () => setTimeout(() => { pressed = null; catchUp(); })); // the click comes before
  }

  // Links to parts without content are hidden.
  const showLinks = () => {
    for (const link of document.querySelectorAll("body > nav a")) {
      const part = document.getElementById(link.hash.slice(1));
      link.hidden = !part || !part.hasChildNodes();
    }
  };

  // Times are the program's, in UTC; a reader's clock says more.
  const pad = (number) => String(number).padStart(2, "0");
  const localTime = (one) => {
    const at = new Date(one.dateTime);
    if (Number.isNaN(at.getTime())) return;
    const clock = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
    const day = `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}`;
    one.title = `${one.textContent}; here ${day} ${clock}`;
    one.textContent = at.toDateString() === new Date().toDateString() ? clock : `${day} ${clock.slice(0, 5)}`;
  };

  // Following the run: server-sent events, read with fetch, which can carry the token.
  const take = (told) => {
    revision = told.revision;
    if (told.title) document.title = told.title;
    for (const part of told.parts) replace(part.id, part.html);
    if (told.parts.length) { catchUp(); showLinks(); }
    if (told.over) {
      over = true;
      warn("The program has ended. This page shows its last state, and comes back when the program does.");
    }
  };
  const SILENT_S = 50; // the program says something every 15 s, unless the connection is dead
  const follow = async () => {
    const patience = new AbortController();
    let timer = setTimeout(() => patience.abort(), 1000 * SILENT_S);
    try { return await listen(patience.signal, () => {
      clearTimeout(timer);
      timer = setTimeout(() => patience.abort(), 1000 * SILENT_S);
    }); } finally { clearTimeout(timer); patience.abort(); }
  };
  const listen = async (signal, heard) => {
    const answer = await send(`events?after=${revision}`, { cache: "no-store", signal });
    if (answer.status === 401) { warn(await answer.text()); return "locked"; }
    if (!answer.ok) { warn(await answer.text()); return "refused"; }
    warn("");
    over = false;
    if (revision === 0) for (const told of document.querySelectorAll("form[data-order] output")) told.remove();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return "ended";
      heard();
      text += value;
      for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
        const event = text.slice(0, end);
        text = text.slice(end + 2);
        if (event.startsWith("data: ")) take(JSON.parse(event.slice(6)));
      }
    }
  };
  const pause = (seconds) => new Promise((resolve) => { setTimeout(resolve, 1000 * seconds); });
  const followOn = async () => {
    for (let failures = 0; ; failures += 1) {
      try {
        const how = await follow();
        if (how === "locked") return;
        if (how === "ended") failures = 0;
        revision = 0; // another server counts anew
      } catch {
        if (!over) warn(`${GONE} It may be starting again; this page tries on.`);
        revision = 0;
      }
      await pause(Math.min(5, 1 + failures));
    }
  };

  // With the token, somebody may see more than the document had.
  const upgrade = async () => {
    if (!token) return;
    const answer = await ask("content", { cache: "no-store" });
    if (!answer.ok) return;
    const told = await answer.json();
    root.classList.toggle("may-change", told.may_change);
    document.title = told.title;
    revision = told.revision;
    main.replaceChildren(...told.parts.map(element).filter(Boolean));
    peers = null;
    const nav = document.querySelector("body > nav");
    nav.replaceChildren(...told.links.map(([key, name, hidden]) => Object.assign(document.createElement("a"), {
      href: `#${key}`, textContent: name, hidden,
    })));
    equip(main);
  };

  // Peers: a window of rows over all of them.
  let rowHeight = 33; // until the first row is there
  const STEP = 50;
  let peers = null;
  const headings = (table) => [...table.querySelectorAll("th[data-key]")].map((one) => one.dataset.key).join();
  const windowed = (table) => {
    const scroll = table.closest(".scroll");
    const { by, way, find } = peers || { by: "", way: "down", find: "" };
    peers = { table, scroll, body: table.tBodies[0], first: 0, by, way, find, asked: "", headings: headings(table) };
    const label = document.createElement("label");
    label.htmlFor = "find";
    label.textContent = "Find a peer by name, id or engine";
    const input = Object.assign(document.createElement("input"), { type: "search", id: "find", autocomplete: "off", value: find });
    const line = document.createElement("p");
    line.className = "find";
    line.append(label, input);
    scroll.parentElement.before(line);
    let timer = 0;
    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(() => { peers.find = input.value; peers.first = 0; scroll.scrollTop = 0; load(true); }, 150);
    });
    for (const heading of table.querySelectorAll("th[data-key]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", heading.dataset.key !== by ? "none" : way === "up" ? "ascending" : "descending");
      button.addEventListener("click", () => {
        const again = peers.by === heading.dataset.key && peers.way === "down";
        [peers.by, peers.way, peers.first] = [heading.dataset.key, again ? "up" : "down", 0];
        for (const one of table.querySelectorAll("th[data-key]")) one.setAttribute("aria-sort", "none");
        heading.setAttribute("aria-sort", again ? "ascending" : "descending");
        scroll.scrollTop = 0;
        load(true);
      });
    }
    scroll.addEventListener("scroll", () => {
      const first = Math.max(0, Math.floor(scroll.scrollTop / rowHeight) - 15);
      if (Math.abs(first - peers.first) >= 10) { peers.first = first; load(false); }
    }, { passive: true });
    load(false);
  };
  const spacer = (rows) => {
    const row = document.createElement("tr");
    row.setAttribute("aria-hidden", "true");
    row.style.height = `${rows * rowHeight}px`;
    return row;
  };
  const load = async (isNew) => {
    const { first, by, way, find } = peers;
    const asked = `peers?first=${first}&count=${STEP}&by=${encodeURIComponent(by)}&way=${way}&find=${encodeURIComponent(find)}`;
    peers.asked = asked;
    const answer = await ask(asked);
    if (!answer.ok || peers.asked !== asked) return;
    const { total, rows } = await answer.json();
    const holder = document.createElement("template");
    holder.innerHTML = rows.join("");
    const focused = document.activeElement && peers.body.contains(document.activeElement)
      ? document.activeElement.closest("tr").dataset.peer : "";
    const found = [...holder.content.children];
    found.forEach((row, place) => row.setAttribute("aria-rowindex", first + place + 2));
    peers.body.replaceChildren(
      ...(first > 0 ? [spacer(first)] : []), ...found,
      ...(total > first + found.length ? [spacer(total - first - found.length)] : []),
    );
    peers.table.setAttribute("aria-rowcount", total + 1);
    if (found.length) rowHeight = found[0].getBoundingClientRect().height || rowHeight;
    if (focused) {
      const link = peers.body.querySelector(`tr[data-peer="${CSS.escape(focused)}"] a`);
      if (link) link.focus({ preventScroll: true });
    }
    if (isNew) say(`${total} peers.`);
  };
  // Whether the table could be kept: it loads its rows again, so that its place and its search stay.
  const refreshPeers = (part) => {
    const table = part.querySelector("#live-peers");
    if (!table || !peers.table.isConnected || headings(table) !== peers.headings) return false;
    peers.table.caption.textContent = table.caption.textContent;
    load(false);
    return true;
  };
  // A peer opens below the table: there it is as wide as the page, and stays when rows change.
  const open = async (link) => {
    const address = link.getAttribute("href").replace(/^#peer=/, "peer?id="); // another peer, named by the one opened
    const answer = await ask(address);
    const close = Object.assign(document.createElement("button"), { type: "button", textContent: "Close" });
    const opened = document.createElement("div");
    opened.id = "opened";
    opened.tabIndex = -1;
    opened.setAttribute("role", "region");
    opened.setAttribute("aria-label", `Peer ${link.textContent}`);
    opened.append(close, answer.ok ? element(await answer.text()) : await answer.text());
    const before = document.getElementById("opened");
    if (before) before.remove();
    peers.scroll.parentElement.after(opened);
    close.addEventListener("click", () => {
      opened.remove();
      const again = peers.body.querySelector(`a[href="${CSS.escape(address)}"]`);
      (again || peers.scroll).focus();
    });
    opened.focus({ preventScroll: true });
    opened.scrollIntoView({ block: "nearest" });
  };

  // Numbers of a plot, when they are opened.
  const fill = async (details) => {
    if (details.dataset.filled) return;
    details.dataset.filled = "1";
    const answer = await ask(`numbers?plot=${encodeURIComponent(details.dataset.plot)}`);
    if (!answer.ok) { delete details.dataset.filled; return; }
    details.replaceChildren(details.querySelector("summary"), element(await answer.text()));
  };

  // Files: a link cannot carry the token.
  const download = async (link) => {
    const answer = await ask(link.getAttribute("href"));
    if (!answer.ok) { warn(await answer.text()); return; }
    const address = URL.createObjectURL(await answer.blob());
    Object.assign(document.createElement("a"), { href: address, download: link.download }).click();
    setTimeout(() => URL.revokeObjectURL(address), 60_000);
  };

  // Orders. The form may be replaced before its answer comes.
  const order = async (form) => {
    const told = { order: form.dataset.order }, forms = () => [...document.querySelectorAll("form[data-order]")];
    for (const input of form.querySelectorAll("input")) if (input.value !== "") told[input.name] = input.type === "number" || "number" in input.dataset ? Number(input.value) : input.value;
    const place = forms().indexOf(form);
    const answer = await ask("orders", {
      method: "POST", body: JSON.stringify(told), headers: { "Content-Type": "application/json" },
    });
    let text = answer.status === 503 ? `${GONE} The order was not given.` : "";
    if (!text) try {
      const back = await answer.json();
      text = back.told || back.error;
    } catch { text = "The order was not taken: open this page with the address that the program printed."; }
    const now = form.isConnected ? form : forms()[place];
    if (!now) return;
    let line = now.querySelector("output");
    if (!line) { line = document.createElement("output"); now.append(line); }
    line.textContent = text;
  };

  const equip = (part) => {
    const table = part.querySelector("#live-peers");
    if (table) windowed(table);
    for (const one of part.querySelectorAll("time[datetime]")) localTime(one);
  };

  document.addEventListener("toggle", ({ target }) => {
    if (target.open && target.matches("details.numbers[data-plot]")) fill(target);
  }, true); // it does not bubble
  document.addEventListener("click", (event) => {
    const link = event.target.closest('#live-peers tbody a, #opened a[href^="#peer="]');
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); open(link); return; }
    const file = event.target.closest("a[download]");
    if (file && token) { event.preventDefault(); download(file); return; }
    const copy = event.target.closest("button[data-copy]");
    if (copy) {
      const text = document.getElementById(copy.dataset.copy).textContent;
      navigator.clipboard.writeText(text).then(() => say("Copied."), () => {
        getSelection().selectAllChildren(document.getElementById(copy.dataset.copy));
        say("Selected: press Ctrl+C to copy.");
      });
    }
  });
  document.addEventListener("submit", async (event) => {
    const form = event.target;
    if (form.dataset.order) { event.preventDefault(); await order(form); return; }
    if (form.classList.contains("ask")) {
      event.preventDefault();
      const wanted = new URLSearchParams(new FormData(form));
      const answer = await ask(`samples?${wanted}`);
      if (!answer.ok) return;
      const section = element(await answer.text());
      if ([...wanted.values()].some(Boolean)) section.dataset.asked = ""; // the newest version's would be another answer
      swap(form.closest("section"), section);
      say("The samples are shown.");
    }
  });
  const skip = document.querySelector(".skip");
  skip.addEventListener("click", (event) => { event.preventDefault(); main.focus(); });

  equip(main);
  showLinks();
  upgrade().finally(followOn);
})();
