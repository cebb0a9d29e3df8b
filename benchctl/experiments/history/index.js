"use strict";
// Sorts, searches and selects the rows of all runs, and draws one workload over time. The table is complete without it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const table = document.querySelector("#runs table");
  const body = table.tBodies[0];
  const rows = [...body.rows].map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const search = document.getElementById("search");
  const selects = [...document.querySelectorAll("select[data-column]")];
  const at = (row, select) => row.cells[Number(select.dataset.column)].textContent;

  for (const select of selects) {
    const values = [...new Set(rows.map(({ row }) => at(row, select)))].sort();
    for (const value of values) select.append(new Option(value === "" ? "not recorded" : value, "=" + value));
    select.addEventListener("change", apply);
  }
  search.addEventListener("input", apply);

  function apply() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const wanted = selects.filter((select) => select.value);
    let shown = 0;
    for (const { row, text } of rows) {
      const fits = words.every((word) => text.includes(word)) && wanted.every((select) => "=" + at(row, select) === select.value);
      row.hidden = !fits;
      shown += fits;
    }
    document.getElementById("count").textContent = `${shown} of ${rows.length} rows`;
  }
  apply();

  [...table.tHead.rows[0].cells].forEach((head, place) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.append(...head.childNodes);
    head.append(button);
    const numeric = head.classList.contains("n");
    const value = ({ row }) => {
      const text = row.cells[place].textContent;
      return numeric ? Number.parseFloat(text) : text;
    };
    const compare = (a, b) => (numeric ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const known = rows.filter((row) => !Number.isNaN(value(row)));
      known.sort((a, b) => (up ? compare(value(a), value(b)) : compare(value(b), value(a))));
      body.append(...known.map(({ row }) => row), ...rows.filter((row) => Number.isNaN(value(row))).map(({ row }) => row));
    });
  });

  const workload = document.getElementById("workload");
  function draw() {
    for (const list of document.querySelectorAll(".changes")) list.hidden = list.dataset.workload !== workload.value;
    const chosen = data[Number(workload.value)];
    const place = document.getElementById("plot");
    place.replaceChildren();
    if (!chosen || typeof Plot === "undefined") return;
    const points = chosen.points.map(([series, time, speedup, low, high, run, engine]) => ({
      series: chosen.series[series], time: new Date(time), speedup, low, high, run, engine: chosen.engines[engine],
    }));
    const title = (point) =>
      `${point.series}\n${point.run}\n${point.engine}\n${point.speedup.toFixed(2)}×` +
      (point.low === null ? "" : ` (95 %: ${point.low.toFixed(2)} to ${point.high.toFixed(2)}×)`);
    const options = { x: "time", y: "speedup" };
    const day = 864e5, times = points.map((point) => +point.time), only = Math.max(...times) === Math.min(...times);
    place.append(Plot.plot({
      width: Math.max(300, Math.min(1280, place.clientWidth)),
      height: 320,
      marginLeft: 45,
      x: { label: null, type: "utc", ...(only && { domain: [times[0] - day, times[0] + day], ticks: 3 }) },
      y: { label: "speed-up (×)", grid: true, nice: true },
      color: { legend: true, domain: chosen.series, ...(chosen.series.length > 10 && { type: "ordinal", scheme: "turbo" }) },
      style: { background: "transparent", color: "inherit", fontSize: "12px", overflow: "visible" },
      marks: [
        Plot.ruleY([1]),
        Plot.ruleX(chosen.steps.map((time) => new Date(time)), { strokeDasharray: "4,3", strokeOpacity: 0.6 }),
        Plot.lineY(points, { ...options, z: "series", stroke: "series", strokeOpacity: 0.5 }),
        Plot.ruleX(points.filter((point) => point.low !== null), { x: "time", y1: "low", y2: "high", stroke: "series" }),
        Plot.dot(points, { ...options, fill: "series", r: 3 }),
        Plot.tip(points, Plot.pointer({ ...options, title, maxRadius: 40 })),
      ],
    }));
  }
  workload.addEventListener("change", draw);
  draw();
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(draw, 150);
  });
})();
