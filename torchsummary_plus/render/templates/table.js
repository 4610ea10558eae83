(() => {
  "use strict";
  const FEW = 100; // The most rows shown initially.
  const SHORT = 12; // The most rows without a search box.
  const done = (window.torchsummaryPlus ||= new WeakSet());
  const scope = document.currentScript ? document.currentScript.getRootNode() : document;
  const number = new Intl.NumberFormat("en-US");

  /* The rows as a tree: each with its level, parent and children, in order. */
  function readRows(body) {
    const path = [];
    return [...body.rows].map((tr, place) => {
      const level = Number(tr.style.getPropertyValue("--level"));
      const row = { tr, place, level, parent: null, children: [], open: true, found: false, kept: false, shown: true };
      while (path.length && path[path.length - 1].level >= level) path.pop();
      if (path.length) {
        row.parent = path[path.length - 1];
        row.parent.children.push(row);
      }
      path.push(row);
      return row;
    });
  }

  /* The columns: numeric ones have a unit; where rows add up, a collapsed row shows the sum of what it hides. */
  function readColumns(head, rows) {
    return [...head.cells].map((th, index) => {
      const unit = th.dataset.unit || "";
      const column = { th, index, unit, values: null, sums: null };
      const value = ({ v }) => (v === undefined ? null : Number(v));
      if (unit) column.values = rows.map(({ tr }) => value(tr.cells[index].dataset));
      if (unit && "addsUp" in th.dataset) {
        column.sums = [...column.values];
        for (const row of [...rows].reverse())
          if (row.parent && column.sums[row.place] !== null) column.sums[row.parent.place] += column.sums[row.place];
        column.whole = rows.reduce((sum, row) => (row.parent ? sum : sum + column.sums[row.place]), 0);
        column.own = rows.map(({ tr }) => tr.cells[index].textContent);
      }
      return column;
    });
  }

  function enhance(table) {
    const body = table.tBodies[0];
    const rows = readRows(body);
    const columns = readColumns(table.tHead.rows[0], rows);
    const nested = rows.some((row) => row.parent);
    const words = rows.map(({ tr }) => `${tr.cells[0].title} ${tr.textContent}`.toLowerCase());
    let order = rows;
    let query = "";
    let current = null;
    table.parentNode.dataset.lmSuppressShortcuts = "true"; // Arrow keys are the table's, not JupyterLab's.

    /* Show and hide rows: during a search the matches and their ancestors, else all that are not collapsed. */
    function draw() {
      for (const row of order) {
        const { parent } = row;
        row.shown = query ? row.kept : !parent || (parent.shown && parent.open);
        if (row.tr.hidden === row.shown) row.tr.hidden = !row.shown;
        if (row.children.length) drawFold(row);
      }
      if (!current || !current.shown) focusable(order.find((row) => row.shown) || null);
    }

    function drawFold(row) {
      const open = String(row.open || Boolean(query));
      if (row.tr.getAttribute("aria-expanded") === open) return;
      row.tr.setAttribute("aria-expanded", open);
      for (const column of columns) {
        if (!column.sums) continue;
        const cell = row.tr.cells[column.index];
        const value = open === "true" ? column.values[row.place] : column.sums[row.place];
        const whole = open === "false" && value !== column.values[row.place];
        cell.textContent = !whole ? column.own[row.place] : column.unit === "%" ? `${value.toFixed(2)}%` : number.format(value);
        cell.classList.toggle("tsp-sum", whole);
        if (column.unit === "elements") cell.style.setProperty("--e", column.whole ? (100 * value) / column.whole : 0);
      }
    }

    /* Tab reaches one row, the arrow keys the others. */
    function focusable(row) {
      if (!nested) return;
      if (current) current.tr.tabIndex = -1;
      current = row;
      if (row) row.tr.tabIndex = 0;
    }

    function focus(row) {
      if (!row) return;
      focusable(row);
      row.tr.focus({ preventScroll: true });
      row.tr.scrollIntoView({ block: "nearest" });
    }

    function fold(row, open) {
      if (!row.children.length || query || row.open === open) return;
      row.open = open;
      draw();
    }

    function neighbour(row, step) {
      let place = order.indexOf(row) + step;
      while (order[place] && !order[place].shown) place += step;
      return order[place];
    }

    const keys = {
      ArrowDown: (row) => focus(neighbour(row, 1)),
      ArrowUp: (row) => focus(neighbour(row, -1)),
      ArrowRight: (row) => (row.open || !row.children.length ? focus(row.children.find((child) => child.shown)) : fold(row, true)),
      ArrowLeft: (row) => (row.open && row.children.length && !query ? fold(row, false) : focus(row.parent)),
      Home: () => focus(order.find((row) => row.shown)),
      End: () => focus([...order].reverse().find((row) => row.shown)),
      Enter: (row) => fold(row, !row.open),
      " ": (row) => fold(row, !row.open),
    };

    /* Rows without table layout are a table to a screen reader only with explicit roles. */
    function setRoles() {
      table.setAttribute("role", nested ? "treegrid" : "table");
      for (const part of [table.tHead, body]) part.setAttribute("role", "rowgroup");
      for (const { th } of columns) th.setAttribute("role", "columnheader");
      for (const tr of table.rows) {
        tr.setAttribute("role", "row");
        for (const cell of tr.cells)
          if (!cell.hasAttribute("role")) cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : nested ? "gridcell" : "cell");
      }
    }

    /* Siblings, in order. */
    function numberRows(family) {
      family.forEach(({ tr }, place) => {
        tr.setAttribute("aria-setsize", family.length);
        tr.setAttribute("aria-posinset", place + 1);
      });
      return family;
    }

    function makeTree() {
      table.setAttribute("aria-readonly", "true");
      for (const { tr, level } of rows) tr.setAttribute("aria-level", level + 1);
      for (const family of [rows.filter((row) => !row.parent), ...rows.map((row) => row.children)]) numberRows(family);
      const rowOf = new Map(rows.map((row) => [row.tr, row]));
      body.addEventListener("click", (event) => {
        const cell = event.target.closest("th");
        if (!cell || String(window.getSelection())) return;
        const row = rowOf.get(cell.parentNode);
        focusable(row);
        fold(row, !row.open);
      });
      body.addEventListener("keydown", (event) => {
        const row = rowOf.get(event.target);
        if (!row || !keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        event.stopPropagation();
        keys[event.key](row);
      });
    }

    /* Sort siblings only, so that a tree stays a tree; missing values always come last. */
    function sort(column, direction) {
      for (const { th } of columns) th.setAttribute("aria-sort", th === column.th ? direction : "none");
      const values = column.sums || column.values;
      const text = new Intl.Collator(undefined, { numeric: true });
      const sign = direction === "descending" ? -1 : 1;
      const compare = (a, b) => {
        if (direction === "none") return a.place - b.place;
        if (!values) return sign * text.compare(a.tr.cells[column.index].textContent, b.tr.cells[column.index].textContent);
        const [x, y] = [values[a.place], values[b.place]];
        if (x === null || y === null) return (x === null) - (y === null);
        return sign * (x - y);
      };
      const sorted = (family) => (nested ? numberRows(family.sort(compare)) : family.sort(compare));
      const stack = sorted(rows.filter((row) => !row.parent)).reverse();
      order = [];
      while (stack.length) {
        const row = stack.pop();
        order.push(row);
        stack.push(...sorted([...row.children]).reverse());
      }
      body.replaceChildren(); // Moving a row takes time in proportion to the rows before it; appending one does not.
      body.append(...order.map((row) => row.tr));
    }

    function makeSortable(column) {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "tsp-sort";
      button.append(...column.th.childNodes);
      column.th.append(button);
      column.th.setAttribute("aria-sort", "none");
      const turns = column.unit ? ["descending", "ascending", "none"] : ["ascending", "descending", "none"];
      button.addEventListener("click", () => {
        sort(column, turns[(turns.indexOf(column.th.getAttribute("aria-sort")) + 1) % turns.length]);
      });
    }

    function search(text) {
      query = text.trim().toLowerCase();
      const terms = query.split(/\s+/);
      for (const row of rows) {
        row.found = Boolean(query) && terms.every((term) => words[row.place].includes(term));
        row.kept = row.found;
        row.tr.classList.toggle("tsp-found", row.found);
      }
      for (const row of [...rows].reverse()) if (row.kept && row.parent) row.parent.kept = true;
      draw();
      const found = rows.filter((row) => row.found).length;
      status.textContent = query ? `${number.format(found)} of ${number.format(rows.length)} rows` : "";
    }

    const status = document.createElement("span");
    status.setAttribute("role", "status");

    function makeTools() {
      const tools = document.createElement("div");
      tools.className = "tsp-tools";
      tools.dataset.lmSuppressShortcuts = "true";
      const box = document.createElement("input");
      box.type = "search";
      box.placeholder = "Search";
      box.setAttribute("aria-label", `Search ${table.caption.textContent}`);
      let waiting = 0;
      box.addEventListener("input", () => {
        clearTimeout(waiting);
        waiting = setTimeout(() => search(box.value), 80);
      });
      box.addEventListener("keydown", (event) => event.stopPropagation());
      tools.append(box);
      if (nested) tools.append(unfolds("Expand all", true), unfolds("Collapse all", false));
      tools.append(status);
      table.parentNode.before(tools);
    }

    function unfolds(label, open) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = label;
      button.addEventListener("click", () => {
        for (const row of rows) row.open = open || !row.parent;
        draw();
      });
      return button;
    }

    /* Of many rows only the first levels are open: as many levels as fit in FEW rows. */
    function openFew() {
      const levels = [];
      for (const { level } of rows) levels[level] = (levels[level] || 0) + 1;
      let deepest = 0;
      for (let sum = levels[0]; deepest < levels.length && sum <= FEW; deepest += 1) sum += levels[deepest + 1] || 0;
      for (const row of rows) row.open = row.level < Math.max(1, deepest - 1);
    }

    /* Say so where the columns do not fit: some systems show a scroll bar only during scrolling. */
    function sayItScrolls() {
      const box = table.parentNode;
      new ResizeObserver(() => box.classList.toggle("tsp-wide", box.scrollWidth > box.clientWidth + 1)).observe(box);
    }

    /* Expand a module's ancestors and go to its row; returns whether it has one. */
    table.reveal = (path) => {
      const row = nested && rows.find(({ tr }) => tr.cells[0].title === path);
      if (!row) return false;
      for (let above = row.parent; above; above = above.parent) above.open = true;
      draw();
      focus(row);
      return true;
    };
    setRoles();
    if (nested) makeTree();
    if (nested && rows.length > FEW) openFew();
    columns.forEach(makeSortable);
    if (nested || rows.length > SHORT) makeTools();
    draw();
    sayItScrolls();
  }

  for (const root of new Set([document, scope]))
    for (const table of root.querySelectorAll("table[data-torchsummary-plus]"))
      if (!done.has(table)) {
        done.add(table);
        enhance(table);
      }
})();
