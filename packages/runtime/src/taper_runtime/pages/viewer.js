"use strict";
// Shows the sections that viewer.py describes. All text enters the page as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";
const LAYER = 96; // height of a layer of the graph, with the frames between two

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function shorten(text, most) {
  return text.length <= most ? text : text.slice(0, most - 1) + "\u2026";
}

// The last part of a module's path tells it from its neighbours.
function shortenPath(text, most) {
  return text.length <= most ? text : "\u2026" + text.slice(text.length - most + 1);
}

function showBytes(count) {
  if (count < 1e3) return `${count} B`;
  if (count < 1e6) return `${(count / 1e3).toFixed(1)} kB`;
  return `${(count / 1e6).toFixed(1)} MB`;
}

function showFacts(rows) {
  const list = make("dl", { class: "facts" });
  for (const [name, value] of rows) list.append(make("dt", {}, name), make("dd", {}, value));
  return list;
}

// -- tables: columns are {name, kind}; kind is text, number, bytes, node or bar ------------------

function cell(column, value, largest, select) {
  if (column.kind === "bar") {
    // value: [length, limit]; the second bar is what the machine could do at best
    const bar = make("span", { class: "bar" });
    for (const part of value) {
      const length = make("i");
      length.style.width = `${(100 * part) / (largest || 1)}%`;
      bar.append(length);
    }
    return make("td", {}, bar);
  }
  if (column.kind === "bytes") return make("td", { class: "number" }, showBytes(value));
  if (column.kind === "number") return make("td", { class: "number" }, String(value));
  if (column.kind === "node" && select) {
    const link = make("button", { class: "tool", type: "button" }, value);
    link.addEventListener("click", () => select(value));
    return make("td", {}, link);
  }
  return make("td", {}, value);
}

function showTable(section, select) {
  const { columns } = section;
  const body = make("tbody");
  const head = make("tr");
  let sorted = { index: -1, falling: false };
  const key = (value) => (Array.isArray(value) ? value[0] : value);
  const fill = () => {
    const rows = [...section.rows];
    if (sorted.index >= 0) {
      rows.sort((a, b) => {
        const [x, y] = [key(a[sorted.index]), key(b[sorted.index])];
        const order = x < y ? -1 : x > y ? 1 : 0;
        return sorted.falling ? -order : order;
      });
    }
    const largest = columns.map((column, index) =>
      column.kind === "bar" ? Math.max(...section.rows.map((row) => Math.max(...row[index])), 0) : 0,
    );
    body.replaceChildren(
      ...rows.map((row) =>
        make("tr", {}, ...row.map((value, i) => cell(columns[i], value, largest[i], select))),
      ),
    );
  };
  columns.forEach((column, index) => {
    const button = make("button", { type: "button" }, column.name);
    const number = column.kind === "number" || column.kind === "bytes";
    const header = make("th", { scope: "col", class: number ? "number" : "" }, button);
    button.addEventListener("click", () => {
      const falling = sorted.index === index ? !sorted.falling : column.kind !== "text";
      sorted = { index, falling };
      for (const other of head.children) other.removeAttribute("aria-sort");
      header.setAttribute("aria-sort", falling ? "descending" : "ascending");
      fill();
    });
    head.append(header);
  });
  fill();
  const table = make("table", { "aria-label": section.title }, make("thead", {}, head), body);
  return make("div", { class: "scroll", tabindex: "0" }, table);
}

// -- a chart of bytes, one value a step ------------------------------------------------------------

function showSteps(section) {
  const { values, labels } = section;
  const largest = Math.max(...values, section.total, 1);
  const [width, height, left] = [1000, 200, 0];
  const x = (step) => left + (step * width) / Math.max(values.length, 1);
  const y = (value) => height - (value / largest) * (height - 12);
  let path = `M ${left} ${height}`;
  values.forEach((value, step) => {
    path += ` L ${x(step)} ${y(value)} L ${x(step + 1)} ${y(value)}`;
  });
  const summary = `${section.title}: at most ${showBytes(Math.max(...values, 0))} in use`;
  const chart = draw(
    "svg",
    { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": summary,
      preserveAspectRatio: "none" },
    draw("path", { d: `${path} L ${width} ${height} Z` }),
    draw("line", { x1: 0, x2: width, y1: y(section.total), y2: y(section.total) }),
  );
  const note = make("p", { class: "faint", "aria-live": "polite" }, section.note);
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const step = Math.floor(((event.clientX - box.left) / box.width) * values.length);
    if (step >= 0 && step < values.length) {
      note.textContent = `step ${step}, ${labels[step]}: ${showBytes(values[step])}`;
    }
  });
  return make("div", {}, chart, note);
}

// -- the graph: boxes for modules that are closed, boxes for the nodes of those that are open ------

class Group {
  constructor(path, parent) {
    Object.assign(this, { path, parent, groups: new Map(), nodes: [], open: false, count: 0 });
  }
}

function groupNodes(nodes) {
  const root = new Group("", null);
  root.open = true;
  for (const node of nodes) {
    let group = root;
    group.count += 1;
    node.group.forEach((name, depth) => {
      if (!group.groups.has(name)) {
        group.groups.set(name, new Group(node.group.slice(0, depth + 1).join("."), group));
      }
      group = group.groups.get(name);
      group.count += 1;
    });
    group.nodes.push(node);
    node.parent = group;
  }
  return root;
}

// A group that only holds one other says nothing by being open.
function isPassage(group) {
  return group.nodes.length === 0 && group.groups.size === 1;
}

// Open all groups of a level while the picture stays readable.
function openSome(root, most) {
  let level = [root];
  let shown = root.nodes.length + root.groups.size;
  while (level.length) {
    const next = level.flatMap((group) => [...group.groups.values()]);
    const more = next.reduce((sum, group) => sum + group.nodes.length + group.groups.size - 1, 0);
    if (shown + more > most) break;
    for (const group of next) group.open = true;
    shown += more;
    level = next;
  }
}

class GraphView {
  constructor(section) {
    this.nodes = section.nodes;
    this.byId = new Map(this.nodes.map((node) => [node.id, node]));
    this.longest = Math.max(...this.nodes.map((node) => node.time || 0), 0);
    this.root = groupNodes(this.nodes);
    openSome(this.root, 60);
    this.selected = null;
    this.canvas = draw("g");
    this.svg = draw("svg", { role: "group", "aria-label": section.title }, this.canvas);
    this.details = make("div", { class: "details", "aria-live": "polite", tabindex: "0" });
    this.details.append(make("p", { class: "faint" }, "Select a node to see what it does."));
    this.search = make("input", { type: "search", placeholder: "Search nodes", "aria-label": "Search nodes" });
    this.found = make("span", { class: "faint", role: "status" });
    this.matches = [];
    this.box = { x: 0, y: 0, width: 100, height: 100 };
    this.element = make("div", {}, this.tools(), make("div", { class: "graph" }, this.svg, this.details));
    this.listen();
    this.show();
    this.fit();
  }

  tools() {
    const bar = make("div", { class: "tools" }, this.search, this.found);
    const add = (name, action) => {
      const button = make("button", { class: "tool", type: "button" }, name);
      button.addEventListener("click", action);
      bar.append(button);
    };
    add("Zoom in", () => this.zoom(0.7));
    add("Zoom out", () => this.zoom(1 / 0.7));
    add("Fit", () => this.fit());
    add("Close modules", () => this.setOpen(false));
    add("Open modules", () => this.setOpen(true));
    return bar;
  }

  listen() {
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.matches.length) {
        const at = this.matches.indexOf(this.selected);
        this.select(this.matches[(at + 1) % this.matches.length]);
      }
    });
    this.svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.85 : 1 / 0.85, this.point(event));
    }, { passive: false });
    let from = null;
    this.svg.addEventListener("pointerdown", (event) => { from = this.point(event); });
    this.svg.addEventListener("pointermove", (event) => {
      if (!from) return;
      const to = this.point(event);
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
    const centre = at || { x: this.box.x + this.box.width / 2, y: this.box.y + this.box.height / 2 };
    this.box.x = centre.x - (centre.x - this.box.x) * factor;
    this.box.y = centre.y - (centre.y - this.box.y) * factor;
    this.box.width *= factor;
    this.box.height *= factor;
    this.look();
  }

  fit() {
    this.box = { x: this.area.x - 20, y: this.area.y - 20, width: this.area.width + 40, height: this.area.height + 40 };
    this.box.height = Math.min(this.box.height, 900); // more is unreadable: begin at the top
    this.look();
  }

  setOpen(open) {
    const visit = (group) => {
      for (const child of group.groups.values()) {
        child.open = open;
        visit(child);
      }
    };
    visit(this.root);
    this.show();
    this.fit();
  }

  // What is visible stands for a node: itself, or the outermost closed module that holds it.
  visible(node) {
    let item = node;
    for (let group = node.parent; group; group = group.parent) if (!group.open) item = group;
    return item;
  }

  show() {
    const items = [];
    const index = new Map();
    const edges = new Map();
    for (const node of this.nodes) {
      const item = this.visible(node);
      if (!index.has(item)) {
        index.set(item, items.length);
        items.push(item);
      }
      for (const name of node.inputs) {
        const source = this.byId.get(name);
        const from = source && this.visible(source);
        // an edge back to a closed module that began earlier would be a cycle of the picture
        if (from && from !== item && index.get(from) < index.get(item)) {
          edges.set(`${index.get(from)} ${index.get(item)}`, [from, item]);
        }
      }
    }
    this.items = items;
    this.edges = [...edges.values()];
    this.place();
    this.paint();
  }

  // Layers by the longest path, positions in a layer near the average of what it is joined to.
  place() {
    const rank = new Map(this.items.map((item) => [item, 0]));
    const joined = new Map(this.items.map((item) => [item, { above: [], below: [] }]));
    for (const [from, to] of this.edges) {
      joined.get(to).above.push(from);
      joined.get(from).below.push(to);
    }
    for (const item of this.items) {
      for (const from of joined.get(item).above) rank.set(item, Math.max(rank.get(item), rank.get(from) + 1));
    }
    const layers = [];
    for (const item of this.items) (layers[rank.get(item)] ||= []).push(item);
    this.at = new Map();
    for (const layer of layers) {
      let x = 0;
      for (const item of layer) {
        const width = Math.max(130, 8 * this.title(item).length + 20);
        this.at.set(item, { x, width, height: 40 });
        x += width + 24;
      }
    }
    const centre = (item) => this.at.get(item).x + this.at.get(item).width / 2;
    for (let sweep = 0; sweep < 6; sweep += 1) {
      const down = sweep % 2 === 0;
      for (const layer of down ? layers : [...layers].reverse()) {
        const wish = new Map(layer.map((item) => {
          const near = down ? joined.get(item).above : joined.get(item).below;
          const sum = near.reduce((total, other) => total + centre(other), 0);
          return [item, near.length ? sum / near.length : centre(item)];
        }));
        layer.sort((a, b) => wish.get(a) - wish.get(b));
        let free = -Infinity;
        for (const item of layer) {
          const spot = this.at.get(item);
          spot.x = Math.max(free, wish.get(item) - spot.width / 2);
          free = spot.x + spot.width + 24;
        }
        const drift = layer.reduce((total, item) => total + centre(item) - wish.get(item), 0) / layer.length;
        for (const item of layer) this.at.get(item).x -= drift;
      }
    }
    layers.forEach((layer, depth) => layer.forEach((item) => { this.at.get(item).y = depth * LAYER; }));
    const spots = [...this.at.values()];
    const x = Math.min(...spots.map((spot) => spot.x));
    const right = Math.max(...spots.map((spot) => spot.x + spot.width));
    this.area = { x, y: 0, width: right - x, height: layers.length * LAYER };
  }

  title(item) {
    return item instanceof Group ? shortenPath(item.path, 26) : shorten(item.title, 26);
  }

  paint() {
    this.shapes = new Map();
    const frames = this.frames();
    this.lines = this.edges.map(([from, to]) => {
      const [a, b] = [this.at.get(from), this.at.get(to)];
      const [x, y, u, v] = [a.x + a.width / 2, a.y + a.height, b.x + b.width / 2, b.y];
      const line = draw("path", { class: "edge", d: `M ${x} ${y} C ${x} ${y + 24}, ${u} ${v - 24}, ${u} ${v}` });
      return { from, to, line };
    });
    const boxes = this.items.map((item) => this.paintItem(item));
    this.canvas.replaceChildren(...frames, ...this.lines.map(({ line }) => line), ...boxes);
    this.mark();
  }

  // A frame around what an open module holds, larger than the frames inside it.
  frames() {
    const frames = [];
    const visit = (group) => {
      let spots = group.nodes.map((node) => this.at.get(node));
      for (const child of group.groups.values()) {
        spots = spots.concat(child.open ? visit(child) : [this.at.get(child)]);
      }
      if (!group.parent || isPassage(group) || !spots.length) return spots;
      const x = Math.min(...spots.map((spot) => spot.x)) - 8;
      const y = Math.min(...spots.map((spot) => spot.y)) - 16;
      const width = Math.max(...spots.map((spot) => spot.x + spot.width)) + 8 - x;
      const height = Math.max(...spots.map((spot) => spot.y + spot.height)) + 6 - y;
      const name = `\u2212 ${group.path}`;
      const label = draw("text", { x: x + 4, y: y + 12, tabindex: "0", role: "button" }, name);
      label.setAttribute("aria-label", `close module ${group.path}`);
      this.press(label, () => this.toggle(group));
      frames.push(draw("g", { class: "frame" }, draw("rect", { x, y, width, height, rx: 6 }), label));
      return [{ x, y, width, height }];
    };
    visit(this.root);
    return frames.reverse();
  }

  paintItem(item) {
    const spot = this.at.get(item);
    const isGroup = item instanceof Group;
    const { x, y, width, height } = spot;
    const kind = isGroup ? "node group" : `node ${item.kind}`;
    const small = isGroup ? `+ ${item.count} nodes` : item.subtitle;
    const time = isGroup ? this.timeOf(item) : item.time || 0;
    const most = isGroup ? this.timeOf(this.root) : this.longest;
    const shape = draw(
      "g",
      { class: kind, tabindex: "0", role: "button" },
      draw("rect", { x, y, width, height, rx: 5 }),
      draw("text", { x: x + 8, y: y + 17 }, this.title(item)),
      draw("text", { x: x + 8, y: y + 32, class: "small" }, shorten(small, Math.floor(width / 7))),
    );
    if (most > 0 && time > 0) {
      shape.append(draw("rect", { class: "heat", x, y: y + height - 3, width: (width * time) / most, height: 3 }));
    }
    const what = isGroup ? `open module ${item.path}, ${item.count} nodes` : `${item.title} ${item.subtitle}`;
    shape.setAttribute("aria-label", what);
    this.press(shape, () => (isGroup ? this.toggle(item) : this.select(item)));
    this.shapes.set(item, shape);
    return shape;
  }

  timeOf(group) {
    let total = group.nodes.reduce((sum, node) => sum + (node.time || 0), 0);
    for (const child of group.groups.values()) total += this.timeOf(child);
    return total;
  }

  press(element, action) {
    element.addEventListener("click", action);
    element.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        action();
      }
    });
  }

  toggle(group) {
    group.open = !group.open;
    this.show();
    this.look();
  }

  mark() {
    for (const [item, shape] of this.shapes) {
      shape.classList.toggle("selected", item === this.selected);
      shape.classList.remove("near");
    }
    const selected = this.selected && this.visible(this.selected);
    for (const { from, to, line } of this.lines) {
      const near = selected && (from === selected || to === selected);
      line.classList.toggle("near", Boolean(near));
      if (near) this.shapes.get(from === selected ? to : from).classList.add("near");
    }
  }

  select(node) {
    this.selected = node;
    for (let group = node.parent; group; group = group.parent) group.open = true;
    this.show();
    const spot = this.at.get(node);
    this.box.x = spot.x + spot.width / 2 - this.box.width / 2;
    this.box.y = spot.y + spot.height / 2 - this.box.height / 2;
    this.look();
    this.describe(node);
  }

  selectNamed(id) {
    const node = this.byId.get(id);
    if (!node) return;
    this.select(node);
    this.element.scrollIntoView({ block: "start" });
  }

  describe(node) {
    const readers = this.nodes.filter((other) => other.inputs.includes(node.id));
    const links = (names) => {
      const list = make("div");
      for (const name of names) {
        const known = this.byId.get(name);
        if (!known) {
          list.append(make("div", {}, name));
          continue;
        }
        const button = make("button", { type: "button" }, name);
        button.addEventListener("click", () => this.select(known));
        list.append(make("div", {}, button));
      }
      return list;
    };
    const rows = [...node.facts];
    if (node.inputs.length) rows.push(["reads", links(node.inputs)]);
    if (readers.length) rows.push(["read by", links(readers.map((other) => other.id))]);
    this.details.replaceChildren(make("h3", {}, node.id), showFacts(rows));
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    const holds = (node) => [node.id, ...node.facts.flat()].some((part) => part.toLowerCase().includes(wanted));
    this.matches = wanted ? this.nodes.filter(holds) : [];
    this.found.textContent = wanted ? `${this.matches.length} found, Enter shows the next` : "";
  }
}

// -- the page ------------------------------------------------------------------------------------

function main() {
  const page = JSON.parse(document.getElementById("data").textContent);
  document.title = page.title;
  const contents = make("nav", { "aria-label": "Contents" });
  const body = make("main");
  body.append(make("h1", {}, page.title), make("p", { class: "faint" }, page.subtitle), contents);
  let graph = null;
  const sections = [];
  for (const section of page.sections) {
    let content = null;
    if (section.kind === "facts") content = showFacts(section.rows);
    else if (section.kind === "warnings") {
      content = make("div", {}, ...section.items.map((text) => make("p", { class: "warning" }, text)));
    } else if (section.kind === "graph") {
      graph = new GraphView(section);
      content = graph.element;
    } else if (section.kind === "steps") content = showSteps(section);
    else content = showTable(section, (id) => graph && graph.selectNamed(id));
    const id = `section-${sections.length}`;
    contents.append(make("a", { href: `#${id}` }, section.title));
    sections.push(make("section", { id, "aria-label": section.title }, make("h2", {}, section.title), content));
  }
  body.append(...sections);
  document.body.replaceChildren(body);
  document.documentElement.dataset.ready = "yes";
}

main();
