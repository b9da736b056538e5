// A chart of one value a step. `total` draws a line, `bands` (pairs of a first and a last step)
// shade, `note` says what is shown, `select` is called with a step that is clicked; mark() shows where one is.

class Chart {
  constructor({ title, values, labels, note, total, bands, show, select }) {
    Object.assign(this, { values, labels, show });
    this.count = Math.max(values.length, 1);
    this.largest = Math.max(...values, total || 0, 1);
    let path = `M 0 ${Chart.HEIGHT}`;
    values.forEach((value, step) => {
      path += ` L ${this.x(step)} ${this.y(value)} L ${this.x(step + 1)} ${this.y(value)}`;
    });
    this.cursor = draw("line", { class: "cursor", visibility: "hidden", y1: 0, y2: Chart.HEIGHT });
    this.svg = draw(
      "svg",
      { class: "chart", viewBox: `0 0 ${Chart.WIDTH} ${Chart.HEIGHT}`, role: "img",
        preserveAspectRatio: "none", "aria-label": title },
      ...(bands || []).map(([from, to]) => draw("rect", {
        class: "band", x: this.x(from), width: this.x(to) - this.x(from), y: 0, height: Chart.HEIGHT,
      })),
      draw("path", { d: `${path} L ${Chart.WIDTH} ${Chart.HEIGHT} Z` }),
      ...(total ? [draw("line", { x1: 0, x2: Chart.WIDTH, y1: this.y(total), y2: this.y(total) })] : []),
      this.cursor,
    );
    this.text = make("p", { class: "faint", "aria-live": "polite" });
    this.element = make("div", {}, this.svg, make("p", { class: "faint" }, note), this.text);
    this.svg.addEventListener("pointermove", (event) => this.tell(this.step(event)));
    if (select) this.svg.addEventListener("click", (event) => select(this.step(event)));
  }

  x(step) {
    return (step * Chart.WIDTH) / this.count;
  }

  y(value) {
    return Chart.HEIGHT - (value / this.largest) * (Chart.HEIGHT - 12);
  }

  step(event) {
    const box = this.svg.getBoundingClientRect();
    const step = Math.floor(((event.clientX - box.left) / box.width) * this.values.length);
    return Math.min(Math.max(step, 0), this.values.length - 1);
  }

  tell(step) {
    if (step >= 0) this.text.textContent = `step ${step}, ${this.labels[step]}: ${this.show(this.values[step])}`;
  }

  mark(step) {
    const x = this.x(step + 0.5);
    for (const [name, value] of Object.entries({ x1: x, x2: x, visibility: "visible" })) {
      this.cursor.setAttribute(name, value);
    }
  }
}

Chart.WIDTH = 1000;
Chart.HEIGHT = 200;

function showSteps(section) {
  const most = Math.max(...section.values, 0);
  const title = `${section.title}: at most ${showBytes(most)} in use`;
  return new Chart({ ...section, title, show: showBytes }).element;
}
