// The script of the page of a report: sorts and searches the table of peers, and shows one peer's part at a time.
// What always holds: the page can be read without it; it asks nothing of any network, keeps nothing, and puts no text
// into the page other than as text.
"use strict";

(() => {
  const overview = document.getElementById("overview");
  const pages = new Map([...document.querySelectorAll("section.peer")].map((page) => [page.id, page]));
  const said = document.getElementById("said");
  const title = document.title;
  let shown = null;
  let left = 0;

  const say = (text) => { said.textContent = text; };

  const wanted = () => {
    try {
      return decodeURIComponent(location.hash.slice(1));
    } catch {
      return "";
    }
  };

  // What the address names: a peer's part alone, or the overview, where the reader was before.
  const show = (isFirst) => {
    const id = wanted();
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
    const link = overview.querySelector(`a[href="#${CSS.escape(before.id).replaceAll("\\", "")}"]`);
    if (link) link.focus({ preventScroll: true });
  };

  // Sorting: a cell's number is in data-v; what has none stands last, whichever way.
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

  document.documentElement.classList.add("js");
  const table = document.getElementById("peer-table");
  if (table) {
    sortable(table);
    if (table.tBodies[0].rows.length > 8) searchable(table);
  }
  window.addEventListener("hashchange", () => show(false));
  show(true);
})();
