// A curve of bytes against milliseconds. `points` are pairs of both, in the order in which the line
// joins them, with `labels`; `note` says what is shown.

function showCurve({ title, points, labels, note }) {
  const [width, height, left, low] = [1000, 320, 90, 40];
  const most = [0, 1].map((axis) => Math.max(...points.map((point) => point[axis])) * 1.08 || 1);
  const x = (ms) => left + (ms / most[0]) * (width - left - 20);
  const y = (bytes) => height - low - (bytes / most[1]) * (height - low - 20);
  const ticks = [0.25, 0.5, 0.75, 1].map((part) => part / 1.08);
  const svg = draw(
    "svg",
    { class: "curve", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title },
    draw("path", { class: "axes", d: `M ${left} 10 V ${height - low} H ${width - 10}` }),
    ...ticks.map((part) => draw("text", { x: x(part * most[0]), y: height - 14, "text-anchor": "middle" },
      `${(part * most[0]).toPrecision(3)} ms`)),
    ...ticks.map((part) => draw("text", { x: left - 8, y: y(part * most[1]) + 4, "text-anchor": "end" },
      showBytes(Math.round(part * most[1])))),
    draw("polyline", { points: points.map(([ms, bytes]) => `${x(ms)},${y(bytes)}`).join(" ") }),
    ...points.map(([ms, bytes], number) => draw(
      "circle", { cx: x(ms), cy: y(bytes), r: 5 },
      draw("title", {}, `${labels[number]}: ${showBytes(bytes)}, ${ms.toPrecision(4)} ms`),
    )),
  );
  return make("div", {}, svg, make("p", { class: "faint" }, note));
}
