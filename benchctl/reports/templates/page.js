"use strict";
// Sorts and filters tables, selects arms and tasks, draws plots with tooltips. The page is complete without it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const chosen = { arm: new Set(data.settings), task: new Set(data.tasks) };
  const setting = (arm) => data.setting_of[arm] ?? arm;
  const visible = (arm, task) =>
    (arm === undefined || chosen.arm.has(setting(arm)) || !data.settings.includes(setting(arm))) &&
    (task === undefined || chosen.task.has(task) || !data.tasks.includes(task));
  const element = (tag, attributes = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), attributes);
    node.append(...children);
    return node;
  };
  document.documentElement.classList.add("live");

  function apply() {
    for (const shown of document.querySelectorAll("[data-arm], [data-task]")) {
      const { arm, task } = shown.dataset;
      shown.hidden = !visible(arm, task) || shown.dataset.filtered === "out";
    }
    drawAll();
  }

  // Select arms and tasks.
  function chooser(kind, title, names) {
    const box = element("fieldset", {}, element("legend", { textContent: title }));
    for (const name of names) {
      const input = element("input", { type: "checkbox", checked: true });
      input.addEventListener("change", () => {
        chosen[kind][input.checked ? "add" : "delete"](name);
        apply();
      });
      box.append(element("label", {}, input, " " + name));
    }
    return box;
  }
  if (data.settings.length + data.tasks.length > 2) {
    const panel = element("details", { className: "chooser" });
    panel.append(element("summary", { textContent: "Select arms and tasks" }));
    if (data.settings.length > 1) panel.append(chooser("arm", "Arms", data.settings));
    if (data.tasks.length > 1) panel.append(chooser("task", "Tasks", data.tasks));
    document.querySelector("nav").append(panel);
  }

  // Tables: sort by a click anywhere on a header (its button is for the keyboard), filter the rows of long ones by text.
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });
  function sortable(table) {
    const body = table.tBodies[0];
    const heads = [...table.tHead.rows[0].cells];
    if (body.rows.length < 2) return;
    heads.forEach((head, index) => {
      const button = element("button", { type: "button", className: "sort" }, ...head.childNodes);
      head.append(button);
      head.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const value = (row) => {
          const stored = JSON.parse(row.dataset.v)[index];
          return stored === "" ? row.cells[index].textContent : stored;
        };
        const rows = [...body.rows].map((row) => [value(row), row]);
        rows.sort(([a], [b]) => (a === null) - (b === null) || (up ? compare(a, b) : compare(b, a)));
        body.append(...rows.map(([, row]) => row));
      });
    });
    if (body.rows.length < 20) return;
    const caption = table.caption.textContent;
    const input = element("input", { type: "search", className: "filter", placeholder: "Filter rows" });
    input.setAttribute("aria-label", "Filter the rows of: " + caption);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      for (const row of body.rows) {
        const text = row.textContent.toLowerCase();
        row.dataset.filtered = words.every((word) => text.includes(word)) ? "in" : "out";
        row.hidden = row.dataset.filtered === "out" || !visible(row.dataset.arm, row.dataset.task);
      }
    });
    table.parentElement.before(input);
  }
  document.querySelectorAll("main table").forEach(sortable);

  // Plots, by Observable Plot; the static drawing stays for print and where a plot has nothing to show.
  const number = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const times = (value) => number(value) + "×";
  const percent = (value) => (100 * value).toFixed(1) + " %";
  const ends = (row) => (row.low === null ? "no interval" : `95 %: ${number(row.low)} to ${times(row.high)}`);
  const selected = (rows) => rows.filter((row) => visible(row.arm, row.task));
  const colours = (arms) => ({ domain: arms, range: arms.map((arm) => data.colours[arm]) });
  const legend = (rows) => ({ ...colours(data.arms.filter((arm) => rows.some((row) => row.arm === arm))), legend: true });
  const frame = (width, more) => ({
    width,
    marginLeft: Math.min(150, 20 + 7 * Math.max(...data.arms.map((arm) => arm.length))),
    marginBottom: 42, // the axis label below its ticks
    color: colours(data.arms),
    style: { background: "transparent", color: "inherit", fontSize: "12px", overflow: "visible" },
    ...more,
  });
  const tip = (rows, options) => Plot.tip(rows, Plot.pointer({ maxRadius: 60, lineHeight: 1.3, ...options }));

  const draw = {
    speedup(width) {
      const rows = selected(data.speedups);
      const blocks = rows.flatMap((row) => row.blocks.map((value) => ({ ...row, value })));
      const whiskers = rows.filter((row) => row.low !== null);
      const options = { x: "value", y: "arm", fy: "task" };
      const title = (row) =>
        `${row.arm}, ${row.task}\n${times(row.value)} (${ends(row)})\nblocks: ${row.blocks.map(times).join(" ")}`;
      const highest = Math.max(1, ...rows.map((row) => Math.max(row.value, Math.min(row.high ?? 0, 2 * row.value))));
      return rows.length && Plot.plot(frame(width, {
        marginRight: 120,
        x: { label: "decode speed-up over the baseline (×)", grid: true, domain: [0, 1.05 * highest], clamp: true },
        y: { label: null, domain: data.arms.filter((arm) => rows.some((row) => row.arm === arm)) },
        fy: { label: null, domain: [...new Set(rows.map((row) => row.task))] },
        marks: [
          Plot.ruleX([1]),
          Plot.ruleY(whiskers, { x1: "low", x2: "high", y: "arm", fy: "task", stroke: "arm" }),
          Plot.tickX(blocks, { ...options, stroke: "currentColor", strokeOpacity: 0.35 }),
          Plot.dot(rows, { ...options, fill: "arm", r: 4.5 }),
          tip(rows, { ...options, title }),
        ],
      }));
    },
    acceptance(width) {
      const rows = selected(data.positions);
      const title = (row) => `${row.arm}\nposition ${row.position}: ${percent(row.share)} of ${row.rounds} rounds`;
      return rows.length && Plot.plot(frame(width, {
        x: { label: "position of the draft token", ticks: 8, tickFormat: "d" },
        y: { label: "rounds that accepted it (%)", percent: true, grid: true, domain: [0, 100] },
        color: legend(rows),
        marginLeft: 50,
        marks: [
          Plot.lineY(rows, { x: "position", y: "share", stroke: "arm" }),
          Plot.dot(rows, { x: "position", y: "share", fill: "arm" }),
          tip(rows, { x: "position", y: "share", title }),
        ],
      }));
    },
    payoff(width) {
      const rows = selected(data.payoff);
      const need = (row) =>
        row.alpha === null ? "" : `\nα ${percent(row.alpha)}, to break even ${row.needed === null ? "over 100 %" : percent(row.needed)}`;
      const title = (row) => `${row.arm}\n${percent(row.rate)} accepted\n${times(row.value)} (${ends(row)})${need(row)}`;
      return rows.length && Plot.plot(frame(width, {
        marginLeft: 50,
        x: { label: "accepted / drafted tokens (%)", percent: true, domain: [0, 100], grid: true },
        y: { label: "decode speed-up (×)", zero: true, grid: true },
        color: legend(rows),
        marks: [
          Plot.ruleY([1]),
          Plot.ruleX(rows.filter((row) => row.low !== null), { x: "rate", y1: "low", y2: "high", stroke: "arm" }),
          Plot.dot(rows, { x: "rate", y: "value", fill: "arm", r: 5 }),
          tip(rows, { x: "rate", y: "value", title }),
        ],
      }));
    },
    "by-concurrency": (width) => levels(width, "closed", "concurrency", "maximum requests in flight", "log"),
    "by-rate": (width) => levels(width, "open", "rate", "requests sent per second", "log"),
  };
  function levels(width, loop, x, label, type) {
    const rows = data.levels.filter((row) => row.loop === loop && visible(row.of) && row.throughput !== null);
    const title = (row) =>
      `${row.arm}\n${number(row.throughput, 1)} tok/s in all, ${times(row.speedup)} (${ends(row)})\n` +
      `latency ${number(row.latency)} s`;
    return rows.length && Plot.plot(frame(width, {
      marginLeft: 60,
      x: { label, type, ticks: [...new Set(rows.map((row) => row[x]))], tickFormat: "~g" },
      y: { label: "tokens per second, all requests", grid: true, zero: true },
      color: { ...colours(data.settings), legend: true },
      fy: { label: "temperature" },
      marks: [
        Plot.lineY(rows, { x, y: "throughput", stroke: "of", fy: "temperature" }),
        Plot.dot(rows, { x, y: "throughput", fill: "of", fy: "temperature", r: 4 }),
        tip(rows, { x, y: "throughput", fy: "temperature", title }),
      ],
    }));
  }
  function drawAll() {
    for (const figure of document.querySelectorAll("figure[data-plot]")) {
      const plot = draw[figure.dataset.plot];
      if (!plot || typeof Plot === "undefined" || !figure.clientWidth) continue; // folded: drawn when it is opened
      figure.querySelector(".plot")?.remove();
      const drawn = plot(Math.max(300, Math.min(864, figure.clientWidth)));
      figure.classList.toggle("drawn", Boolean(drawn));
      if (!drawn) continue;
      const box = element("div", { className: "plot" }, drawn);
      box.setAttribute("aria-hidden", "true"); // the table has the same numbers, and the drawing its description
      figure.querySelector(".drawing, figcaption").before(box);
    }
  }
  drawAll();
  document.addEventListener("toggle", (event) => event.target.querySelector("figure[data-plot]") && drawAll(), true);
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 150);
  });
})();
