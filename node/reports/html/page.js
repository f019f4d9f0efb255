// The script of a report's page. It sorts and searches the table of peers, shows one peer's part at a time, and reads
// the values of a plot below the pointer. A page that is written again it loads again.
// Invariants: the page can be read without it; it loads nothing but the page itself, and stores nothing; text that it
// puts into the page is text and never markup.
"use strict";

(() => {
  const overview = document.getElementById("overview");
  const pages = new Map([...document.querySelectorAll("section.peer")].map((page) => [page.id, page]));
  const said = document.getElementById("said");
  const title = document.title;
  let shown = null;
  let left = 0;

  const say = (text) => { said.textContent = text; };

  const named = (hash) => {
    try {
      return decodeURIComponent(hash.slice(1));
    } catch {
      return "";
    }
  };

  // Show what the address names: a peer's part alone, or the overview, scrolled to where the reader was before.
  const show = (isFirst) => {
    const id = named(location.hash);
    const page = pages.get(id) || null;
    const before = shown;
    if (page && !before) left = window.scrollY;
    overview.hidden = page !== null;
    for (const one of pages.values()) one.hidden = one !== page;
    shown = page;
    if (page) {
      const heading = page.querySelector("h2");
      document.title = `${heading.textContent}, ${title}`;
      window.scrollTo(0, 0);
      heading.focus({ preventScroll: true });
      return;
    }
    document.title = title;
    if (id.startsWith("peer=")) say("This report has no page about that peer.");
    if (isFirst || !before) return;
    const target = id ? document.getElementById(id) : null;
    if (target && !id.startsWith("peer=")) target.scrollIntoView();
    else window.scrollTo(0, left);
    const link = [...overview.querySelectorAll("#peer-table a")].find((one) => named(one.hash) === before.id);
    if (link) link.focus({ preventScroll: true });
  };

  // Sorting: a cell's number is in data-v; rows without a number come last in both directions.
  const key = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.v;
    if (value === undefined) return cell.textContent.trim().toLowerCase();
    return value === "" ? null : column === 0 ? value : Number(value);
  };

  const compare = (one, other) => (typeof one === "number" && typeof other === "number")
    ? one - other
    : String(one).localeCompare(String(other));

  const sort = (table, heading, column) => {
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => [key(row, column), row]);
    const isText = rows.every(([value]) => typeof value !== "number");
    const now = heading.getAttribute("aria-sort");
    const way = now === "none" ? (isText ? 1 : -1) : now === "ascending" ? -1 : 1;
    rows.sort(([one], [other]) => {
      if (one === null || other === null) return (one === null) - (other === null);
      return way * compare(one, other);
    });
    for (const each of heading.parentElement.cells) each.setAttribute("aria-sort", "none");
    heading.setAttribute("aria-sort", way > 0 ? "ascending" : "descending");
    body.append(...rows.map(([, row]) => row));
    say(`Sorted by ${heading.textContent}, ${way > 0 ? "ascending" : "descending"}.`);
  };

  const sortable = (table) => {
    const headings = [...table.querySelectorAll("thead tr.columns th")];
    headings.forEach((heading, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...heading.childNodes);
      heading.append(button);
      heading.setAttribute("aria-sort", "none");
      button.addEventListener("click", () => sort(table, heading, column));
    });
  };

  const searchable = (table) => {
    const label = document.createElement("label");
    label.htmlFor = "find";
    label.textContent = "Find a peer by name, id or engine";
    const input = Object.assign(document.createElement("input"), { type: "search", id: "find", autocomplete: "off" });
    const line = document.createElement("p");
    line.className = "find";
    line.append(label, input);
    table.closest(".scroll").before(line);
    const texts = [...table.tBodies[0].rows].map((row) => {
      const link = row.querySelector("a");
      return [row, `${row.textContent} ${link ? link.hash : ""}`.toLowerCase()];
    });
    input.addEventListener("input", () => {
      const words = input.value.trim().toLowerCase();
      let number = 0;
      for (const [row, text] of texts) {
        row.hidden = !text.includes(words);
        number += !row.hidden;
      }
      say(`${number} of ${texts.length} peers.`);
    });
  };

  // Reading values of a plot: the one nearest to the pointer for each line, from the table beside the drawing.
  const columns = (figure) => {
    const table = figure.querySelector("details table");
    const names = [...table.tHead.rows[0].cells].slice(1).map((cell) => cell.textContent.replace(/ \([^)]*\)$/, ""));
    return names.map((name, place) => {
      const cells = [...table.tBodies[0].rows].map((row) => [row.cells[0].textContent, row.cells[place + 1].textContent]);
      return [name, cells.filter(([, value]) => value !== "").map(([at, value]) => [Number(at), value])];
    });
  };

  const nearest = (points, at) => {
    let low = 0;
    let high = points.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (points[middle][0] < at) low = middle; else high = middle;
    }
    return at - points[low][0] <= points[high][0] - at ? points[low] : points[high];
  };

  const readable = (drawing) => {
    const figure = drawing.closest("figure");
    const { left, right, top, bottom, wall, unit } = drawing.dataset;
    const box = document.createElement("div");
    box.className = "reading";
    box.hidden = true;
    box.setAttribute("aria-hidden", "true");
    const pointer = document.createElementNS(drawing.namespaceURI, "line");
    pointer.setAttribute("class", "pointer");
    pointer.setAttribute("y1", top);
    pointer.setAttribute("y2", bottom);
    let lines = null;
    const hide = () => {
      box.hidden = true;
      pointer.remove();
    };
    drawing.addEventListener("pointermove", (event) => {
      lines = lines || columns(figure);
      const place = drawing.getBoundingClientRect();
      const x = (event.clientX - place.left) * drawing.viewBox.baseVal.width / place.width;
      const at = (x - left) / (right - left) * wall;
      if (at < 0 || at > Number(wall)) {
        hide();
        return;
      }
      const texts = [`${at.toPrecision(3)} ${unit}`];
      for (const [name, points] of lines) if (points.length) texts.push(`${name}: ${nearest(points, at)[1]}`);
      box.replaceChildren(...texts.map((text) => {
        const line = document.createElement("p");
        line.textContent = text;
        return line;
      }));
      pointer.setAttribute("x1", x);
      pointer.setAttribute("x2", x);
      drawing.append(pointer);
      box.hidden = false;
      const frame = figure.getBoundingClientRect();
      const beside = event.clientX - frame.left + 14;
      const fits = beside + box.offsetWidth < frame.width;
      box.style.left = `${Math.max(4, fits ? beside : beside - box.offsetWidth - 28)}px`;
      box.style.top = `${place.top - frame.top + 26 * place.height / drawing.viewBox.baseVal.height}px`;
    });
    drawing.addEventListener("pointerleave", hide);
    figure.append(box);
  };

  // Loading again: not while the reader has done what that would undo, and only what a server says is newer.
  const isBusy = () => document.hidden
    || document.querySelector("details[open], th[aria-sort=ascending], th[aria-sort=descending]") !== null
    || Boolean(document.getElementById("find")?.value)
    || !document.getSelection().isCollapsed;

  const isNewer = async () => {
    if (location.protocol === "file:") return true;
    try {
      const told = await fetch(location.href, { method: "HEAD", cache: "no-store" });
      const changed = Date.parse(told.headers.get("last-modified") || "");
      return told.ok && !(changed <= Date.parse(document.lastModified));
    } catch {
      return false;  // the server is away: the page stays
    }
  };

  const loadAgain = (line) => {
    const look = async () => { if (!isBusy() && await isNewer() && !isBusy()) location.reload(); };
    const timer = setInterval(look, 1000 * Number(line.dataset.s));
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = "Stop";
    button.addEventListener("click", () => {
      clearInterval(timer);
      line.textContent = "This page stays as it is until you load it again.";
      line.tabIndex = -1;
      line.focus();
    });
    line.append(" ", button);
  };

  document.documentElement.classList.add("js");
  const again = document.getElementById("again");
  if (again) loadAgain(again);
  for (const drawing of document.querySelectorAll("svg[data-wall]")) readable(drawing);
  const table = document.getElementById("peer-table");
  if (table) {
    sortable(table);
    if (table.tBodies[0].rows.length > 8) searchable(table);
  }
  // Jump to the content that is shown, without changing the address.
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    document.getElementById("main").focus();
  });
  window.addEventListener("hashchange", () => show(false));
  show(true);
})();
