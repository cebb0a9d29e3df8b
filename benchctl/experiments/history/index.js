"use strict";
// Draws one workload over time; the report's own script sorts and filters the table, which is complete without it.
(() => {
  const { workloads } = JSON.parse(document.getElementById("data").textContent);
  const workload = document.getElementById("workload");
  function draw() {
    for (const list of document.querySelectorAll(".changes")) list.hidden = list.dataset.workload !== workload.value;
    const chosen = workloads[Number(workload.value)];
    const place = document.getElementById("plot");
    place.replaceChildren();
    if (!chosen || typeof Plot === "undefined") return;
    const points = chosen.points.map(([series, time, speedup, low, high, run, engine]) => ({
      series: chosen.series[series], time: new Date(time), speedup, low, high, run, engine: chosen.engines[engine],
    })).filter((point) => point.time > 0); // null and what is no time are left out
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
