// Sorts and filters tables, lifts a model out of the crowd, and keeps choices from page to page.
// Every page reads without it.
"use strict";
(() => {
  const all = (what, where = document) => [...where.querySelectorAll(what)];
  const kept = {
    get(name) { try { return sessionStorage.getItem("besiege " + name); } catch { return null; } },
    set(name, value) {
      try {
        if (value === null) sessionStorage.removeItem("besiege " + name);
        else sessionStorage.setItem("besiege " + name, value);
      } catch { /* a browser that keeps nothing */ }
    },
  };

  // Choices: the same norm, goal or measure on the next page.
  for (const input of all(".choice input")) {
    if (kept.get(input.name) === input.value) input.checked = true;
    input.addEventListener("change", () => kept.set(input.name, input.value));
  }

  // Sorting, by data-v where a cell has it, otherwise by its text.
  const value = (row, place) => {
    const cell = row.cells[place];
    if (!cell) return "";
    const text = cell.dataset.v ?? cell.textContent.trim();
    const number = Number(text.replace(/[,%\s]/g, ""));
    return text !== "" && !Number.isNaN(number) ? number : text.toLowerCase();
  };
  const compare = (a, b) =>
    typeof a === typeof b ? (a < b ? -1 : a > b ? 1 : 0) : typeof a === "number" ? -1 : 1;
  for (const table of all("table.sortable")) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending"
          || (!head.hasAttribute("aria-sort") && head.classList.contains("n"));
        heads.forEach(other => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const rows = [...body.rows].map(row => [value(row, place), row]);
        rows.sort((a, b) => (down ? compare(b[0], a[0]) : compare(a[0], b[0])));
        body.append(...rows.map(row => row[1]));
      });
    });
  }

  // Filtering: rows that have every word.
  for (const table of all("table.filter")) {
    if (table.tBodies[0].rows.length < 6) continue;
    const box = document.createElement("input");
    box.type = "search";
    box.className = "filter-box";
    box.placeholder = "Filter rows";
    box.setAttribute("aria-label", "Filter rows");
    table.closest(".scroll").before(box);
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.classList.toggle("away", !words.every(word => text.includes(word)));
      }
    });
  }

  // Lifting: click on a name of a legend, and again to let it go.
  const items = all(".lifts li");
  const lift = number => {
    if (number === null) delete document.documentElement.dataset.lift;
    else document.documentElement.dataset.lift = number;
    for (const item of items) item.setAttribute("aria-pressed", String(item.dataset.m === number));
    kept.set("lift", number);
  };
  for (const item of items) {
    item.tabIndex = 0;
    item.setAttribute("role", "button");
    const toggle = () => {
      const mine = document.documentElement.dataset.lift === item.dataset.m;
      lift(mine ? null : item.dataset.m);
    };
    item.addEventListener("click", toggle);
    item.addEventListener("keydown", event => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); toggle(); }
    });
  }
  const before = kept.get("lift");
  if (before !== null && items.some(item => item.dataset.m === before)) lift(before);

  // A link to the images of a model opens them, and one to a part that is hidden chooses it.
  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (const [name, words] of Object.entries(target.dataset)) {
      const input = document.getElementById(name + "-" + words.split(" ")[0]);
      if (input) input.checked = true;
    }
    const folded = target.closest("details");
    if (folded) folded.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
