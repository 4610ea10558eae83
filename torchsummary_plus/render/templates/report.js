(() => {
  "use strict";
  const tip = document.createElement("div");
  tip.className = "tsp-tip";
  tip.hidden = true;
  document.body.append(tip);

  function showTip(text, x, y) {
    tip.hidden = !text;
    if (!text) return;
    if (tip.textContent !== text) tip.textContent = text;
    const { width, height } = tip.getBoundingClientRect();
    const left = x + 14 + width > innerWidth ? x - width - 14 : x + 14;
    const top = y + 14 + height > innerHeight ? y - height - 14 : y + 14;
    tip.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  }

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") showTip("");
  });

  function bytes(count) {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let power = 0;
    for (; count >= 1024 && power < 4; power += 1) count /= 1024;
    return power ? `${count.toFixed(2)} ${units[power]}` : `${count} B`;
  }

  /* Sections become tabs, following the ARIA guide: Tab reaches one, the arrow keys the others. */
  const sections = [...document.querySelectorAll(".tsp-section")];
  const tabs = sections.map((section, place) => {
    const tab = document.createElement("button");
    tab.type = "button";
    tab.textContent = section.dataset.tab;
    tab.id = `tab-${place}`;
    section.id = `panel-${place}`;
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", section.id);
    section.setAttribute("role", "tabpanel");
    section.setAttribute("aria-labelledby", tab.id);
    tab.addEventListener("click", () => choose(place));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (place + step + tabs.length) % tabs.length;
      choose(next);
      tabs[next].focus();
    });
    return tab;
  });

  function choose(place) {
    tabs.forEach((tab, other) => {
      tab.setAttribute("aria-selected", String(other === place));
      tab.tabIndex = other === place ? 0 : -1;
      sections[other].hidden = other !== place;
    });
  }

  if (tabs.length > 1) {
    const list = document.createElement("div");
    list.setAttribute("role", "tablist");
    list.append(...tabs);
    document.querySelector("main").prepend(list);
    choose(0);
  }

  /* The pointer or the arrow keys move a cursor over the timeline; a tooltip shows what is live there. */
  for (const svg of document.querySelectorAll(".tsp-timeline")) {
    const { kinds, names, points } = JSON.parse(svg.parentNode.querySelector(".tsp-data").textContent);
    const cursor = svg.querySelector(".tsp-cursor");
    let at = points.length - 1;
    svg.setAttribute("role", "slider");
    svg.tabIndex = 0;
    svg.setAttribute("aria-valuemin", 0);
    svg.setAttribute("aria-valuemax", points.length - 1);

    const describe = ([, operator, module, phase, ...live]) => {
      const total = live.reduce((sum, one) => sum + one, 0);
      const where = names[module] ? ` of ${names[module]}` : "";
      const parts = live.map((one, kind) => [one, kinds[kind]]).filter(([one]) => one).sort((a, b) => b[0] - a[0]);
      return [`${bytes(total)} in the ${names[phase]}${where}`, names[operator], ...parts.map(([one, kind]) => `${kind} ${bytes(one)}`)].join("\n");
    };
    const move = (place) => {
      at = Math.max(0, Math.min(points.length - 1, place));
      cursor.classList.add("tsp-on");
      cursor.setAttribute("transform", `translate(${points[at][0]})`);
      svg.setAttribute("aria-valuenow", at);
      svg.setAttribute("aria-valuetext", describe(points[at]));
      return describe(points[at]);
    };
    const leave = () => {
      cursor.classList.remove("tsp-on");
      showTip("");
    };
    const point = (event) => {
      const box = svg.getBoundingClientRect();
      const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
      let [low, high] = [0, points.length - 1];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (points[middle][0] <= x) low = middle;
        else high = middle - 1;
      }
      showTip(move(low), event.clientX, event.clientY);
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    svg.addEventListener("pointerleave", leave);
    svg.addEventListener("blur", leave);
    svg.addEventListener("keydown", (event) => {
      const wide = event.shiftKey ? 20 : 1;
      const place = { ArrowRight: at + wide, ArrowLeft: at - wide, Home: 0, End: points.length - 1 }[event.key];
      if (place === undefined) return;
      event.preventDefault();
      const text = move(place);
      const box = svg.getBoundingClientRect();
      showTip(text, box.left + (points[at][0] / svg.viewBox.baseVal.width) * box.width, box.top + 30);
    });
  }

  /* A tile has a tooltip with its owner, and its name where that has room; a click leads to the module's row. */
  for (const map of document.querySelectorAll(".tsp-treemap")) {
    const tips = new Map();
    for (const tile of map.querySelectorAll("[title]")) {
      tips.set(tile, tile.title);
      tile.removeAttribute("title");
    }
    const names = [...map.querySelectorAll("span")].reverse(); // A size before the name that it is in.
    new ResizeObserver(() => {
      for (const name of names) name.hidden = false;
      for (const name of names) {
        const [box, text] = [name.closest("[data-path]").getBoundingClientRect(), name.getBoundingClientRect()];
        name.hidden = text.right > box.right || text.bottom > box.bottom;
      }
    }).observe(map);
    const section = map.closest(".tsp-section");
    map.addEventListener("pointermove", (event) => {
      showTip(tips.get(event.target.closest("[data-path]")) || "", event.clientX, event.clientY);
    });
    map.addEventListener("pointerleave", () => showTip(""));
    map.addEventListener("click", (event) => {
      const tile = event.target.closest(".tsp-tile");
      if (!tile || !tile.dataset.path) return;
      for (const table of section.querySelectorAll("table")) if (table.reveal && table.reveal(tile.dataset.path)) break;
    });
  }
})();
