// A picture of boxes and the lines between them, which a reader can move and zoom.

// What has become of a box that is marked, as a sign before its title.
const SIGNS = { added: "+", changed: "~", removed: "\u2212" };

class Picture {
  constructor(label) {
    this.canvas = draw("g");
    this.svg = draw("svg", { class: "picture", role: "group", "aria-label": label }, this.canvas);
    this.box = { x: 0, y: 0, width: 100, height: 100 };
    this.isMoved = false; // by the reader, since all was shown
    this.shapes = new Map();
    this.listen();
  }

  listen() {
    this.svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.85 : 1 / 0.85, this.point(event));
    }, { passive: false });
    let from = null;
    this.svg.addEventListener("pointerdown", (event) => { from = this.point(event); });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from) return;
      const to = this.point(event);
      this.isMoved = true;
      this.box.x += from.x - to.x;
      this.box.y += from.y - to.y;
      this.look();
    });
    for (const end of ["pointerup", "pointerleave"]) this.svg.addEventListener(end, () => { from = null; });
  }

  point(event) {
    const { a, d, e, f } = this.svg.getScreenCTM();
    return { x: (event.clientX - e) / a, y: (event.clientY - f) / d };
  }

  look() {
    const { x, y, width, height } = this.box;
    this.svg.setAttribute("viewBox", `${x} ${y} ${width} ${height}`);
  }

  zoom(factor, at) {
    this.isMoved = true;
    const centre = at || { x: this.box.x + this.box.width / 2, y: this.box.y + this.box.height / 2 };
    this.box.x = centre.x - (centre.x - this.box.x) * factor;
    this.box.y = centre.y - (centre.y - this.box.y) * factor;
    this.box.width *= factor;
    this.box.height *= factor;
    this.look();
  }

  fit(highest = 900) {
    this.isMoved = false;
    this.box = { x: this.area.x - 20, y: this.area.y - 20, width: this.area.width + 40, height: this.area.height + 40 };
    // more is unreadable: begin at the top, around the first box
    this.box.height = Math.min(this.box.height, highest);
    const widest = 1.6 * (this.svg.clientWidth || innerWidth);
    if (this.box.width > widest) {
      const first = this.at.values().next().value;
      this.box.x = Math.max(this.box.x, first.x + first.width / 2 - widest / 2);
      this.box.width = widest;
    }
    this.look();
  }

  centre(item) {
    const spot = this.at.get(item);
    this.box.x = spot.x + spot.width / 2 - this.box.width / 2;
    this.box.y = spot.y + spot.height / 2 - this.box.height / 2;
    this.look();
  }

  // Draw items as boxOf() has them: {kind, title, subtitle, label, share, mark, action}; `share` of
  // the width is a bar, `mark` one of SIGNS. settle() may move the places; framesOf() gives what is
  // drawn behind, from the places.
  paint(items, edges, boxOf, { settle = () => {}, framesOf = () => [] } = {}) {
    const boxes = new Map(items.map((item) => [item, boxOf(item)]));
    const widthOf = (item) => {
      const { title, subtitle, mark } = boxes.get(item);
      return Math.max(130, 8 * title.length + (mark ? 38 : 20), 7 * Math.min(subtitle.length, 30) + 16);
    };
    this.at = placeItems(items, edges, widthOf);
    settle(this.at);
    this.area = frameAround([...this.at.values()], NO_EDGE);
    this.lines = edges.map(([from, to]) => {
      const [a, b] = [this.at.get(from), this.at.get(to)];
      const [x, y, u, v] = [a.x + a.width / 2, a.y + a.height, b.x + b.width / 2, b.y];
      const line = draw("path", { class: "edge", d: `M ${x} ${y} C ${x} ${y + 24}, ${u} ${v - 24}, ${u} ${v}` });
      return { from, to, line };
    });
    this.shapes = new Map(items.map((item) => [item, this.paintBox(this.at.get(item), boxes.get(item))]));
    this.canvas.replaceChildren(
      ...framesOf(this.at), ...this.lines.map(({ line }) => line), ...this.shapes.values(),
    );
  }

  paintBox({ x, y, width, height }, { kind, title, subtitle, label, share, mark, action }) {
    const shape = draw(
      "g",
      { class: `node ${kind} ${mark || ""}`, tabindex: "0", role: "button" },
      draw("rect", { x, y, width, height, rx: 5 }),
      draw("text", { x: x + 8, y: y + 17 }, title),
      draw("text", { x: x + 8, y: y + 32, class: "small" }, shorten(subtitle, Math.floor(width / 7))),
    );
    if (share > 0) {
      shape.append(draw("rect", { class: "heat", x, y: y + height - 3, width: width * share, height: 3 }));
    }
    if (mark) shape.append(draw("text", { x: x + width - 14, y: y + 17, class: "sign" }, SIGNS[mark]));
    shape.setAttribute("aria-label", mark ? `${mark}: ${label}` : label);
    press(shape, action);
    return shape;
  }

  // Show which box is selected, and what the one that stands for it is joined to.
  select(item, visible) {
    for (const [other, shape] of this.shapes) {
      shape.classList.toggle("selected", other === item);
      shape.classList.remove("near");
    }
    for (const { from, to, line } of this.lines) {
      const near = visible && (from === visible || to === visible);
      line.classList.toggle("near", Boolean(near));
      if (near) this.shapes.get(from === visible ? to : from).classList.add("near");
    }
  }
}
