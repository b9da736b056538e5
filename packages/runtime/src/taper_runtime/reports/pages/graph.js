// The graph: boxes for modules that are closed, boxes for the nodes of those that are open.

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

// What a frame has around the boxes in it: above is its name.
const EDGE = { side: 8, above: 16, below: 6 };
const NO_EDGE = { side: 0, above: 0, below: 0 };

function frameAround(spots, edge) {
  const x = Math.min(...spots.map((spot) => spot.x)) - edge.side;
  const y = Math.min(...spots.map((spot) => spot.y)) - edge.above;
  const right = Math.max(...spots.map((spot) => spot.x + spot.width)) + edge.side;
  const bottom = Math.max(...spots.map((spot) => spot.y + spot.height)) + edge.below;
  return { x, y, width: right - x, height: bottom - y };
}

class GraphView {
  // section: {title, nodes}; hooks: what the details say of a node beyond its facts, rows(node), and
  // an element for a name that is no node, link(name).
  constructor(section, hooks = {}) {
    this.rows = hooks.rows || (() => []);
    this.link = hooks.link || ((name) => name);
    this.selected = null;
    this.picture = new Picture(section.title);
    this.details = make("div", { class: "details", "aria-live": "polite", tabindex: "0" });
    this.search = make("input", { type: "search", placeholder: "Search nodes", "aria-label": "Search nodes" });
    this.found = make("span", { class: "faint", role: "status" });
    this.matches = [];
    this.search.addEventListener("input", () => this.find(this.search.value));
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.matches.length) {
        const at = this.matches.indexOf(this.selected);
        this.select(this.matches[(at + 1) % this.matches.length]);
      }
    });
    const panes = make("div", { class: "graph" }, this.picture.svg, this.details);
    this.element = make("div", {}, this.tools(), panes);
    this.setNodes(section.nodes);
    openSome(this.root, 60);
    this.describe(null);
    this.show();
    this.picture.fit();
  }

  tools() {
    return make(
      "div", { class: "tools" }, this.search, this.found,
      button("Zoom in", () => this.picture.zoom(0.7)),
      button("Zoom out", () => this.picture.zoom(1 / 0.7)),
      button("Fit", () => this.picture.fit()),
      button("Close modules", () => this.setOpen(false)),
      button("Open modules", () => this.setOpen(true)),
    );
  }

  setNodes(nodes) {
    this.nodes = nodes;
    this.byId = new Map(nodes.map((node) => [node.id, node]));
    this.longest = Math.max(...nodes.map((node) => node.time || 0), 0);
    this.root = groupNodes(nodes);
  }

  // Show the nodes that the graph has now: the same modules are open. The selection, or the place
  // that the reader has moved to, stays in sight; else what is marked comes there.
  update(nodes) {
    const open = new Set(this.groups().filter((group) => group.open).map((group) => group.path));
    this.setNodes(nodes);
    for (const group of this.groups()) group.open = open.has(group.path);
    const id = this.selected && this.selected.id;
    this.selected = this.byId.get(id) || null;
    if (id) this.describe(this.selected, id);
    this.find(this.search.value);
    this.show();
    if (this.selected && this.visible(this.selected) === this.selected) this.picture.centre(this.selected);
    else if (this.picture.isMoved || id) this.picture.look();
    else this.showMarked();
  }

  // Show all, or where the first of what is marked lies.
  showMarked() {
    this.picture.fit();
    const marked = this.nodes.find((node) => node.mark);
    if (marked) this.picture.centre(this.visible(marked));
  }

  // All groups but the root.
  groups() {
    const inside = (group) => [...group.groups.values()].flatMap((child) => [child, ...inside(child)]);
    return inside(this.root);
  }

  setOpen(open) {
    for (const group of this.groups()) group.open = open;
    this.show();
    this.picture.fit();
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
    this.picture.paint(items, [...edges.values()], (item) => this.box(item), {
      settle: (at) => this.settle(this.root, at), framesOf: (at) => this.frames(at),
    });
    this.mark();
  }

  box(item) {
    if (!(item instanceof Group)) {
      return {
        kind: item.kind, title: shorten(item.title, 26), subtitle: item.subtitle, mark: item.mark,
        label: `${item.title} ${item.subtitle}`,
        share: (item.time || 0) / (this.longest || 1), action: () => this.select(item),
      };
    }
    const marked = markedIn(item);
    return {
      kind: "group", title: shortenPath(item.path, 26), subtitle: `+ ${item.count} nodes`,
      mark: marked ? "changed" : "",
      label: `open module ${item.path}, ${item.count} nodes`,
      share: timeOf(item) / (timeOf(this.root) || 1), action: () => this.toggle(item),
    };
  }

  // Move what a group holds to the right until no frame of an open module in it covers anything
  // else. Return the area of its frame, and the boxes in it.
  settle(group, at) {
    const units = group.nodes.map((node) => ({ area: at.get(node), boxes: [at.get(node)] }));
    for (const child of group.groups.values()) {
      units.push(child.open ? this.settle(child, at) : { area: at.get(child), boxes: [at.get(child)] });
    }
    units.sort((a, b) => a.area.x + a.area.width / 2 - b.area.x - b.area.width / 2);
    const placed = [];
    for (const { area, boxes } of units) {
      const { x, y, width, height } = area;
      const beside = placed.filter((other) => y < other.y + other.height && other.y < y + height);
      const to = Math.max(x, ...beside.map((other) => other.x + other.width + GAP));
      for (const box of boxes) box.x += to - x;
      placed.push({ x: to, y, width, height });
    }
    const areas = placed.length ? placed : [{ x: 0, y: 0, width: 0, height: 0 }];
    const edge = !group.parent || isPassage(group) ? NO_EDGE : EDGE;
    return { area: frameAround(areas, edge), boxes: units.flatMap((unit) => unit.boxes) };
  }

  // A frame around what an open module holds, larger than the frames inside it.
  frames(at) {
    const frames = [];
    const visit = (group) => {
      let spots = group.nodes.map((node) => at.get(node));
      for (const child of group.groups.values()) {
        spots = spots.concat(child.open ? visit(child) : [at.get(child)]);
      }
      if (!group.parent || isPassage(group) || !spots.length) return spots;
      const { x, y, width, height } = frameAround(spots, EDGE);
      const name = `\u2212 ${group.path}`;
      const label = draw("text", { x: x + 4, y: y + 12, tabindex: "0", role: "button" }, name);
      label.setAttribute("aria-label", `close module ${group.path}`);
      press(label, () => this.toggle(group));
      frames.push(draw("g", { class: "frame" }, draw("rect", { x, y, width, height, rx: 6 }), label));
      return [{ x, y, width, height }];
    };
    visit(this.root);
    return frames.reverse();
  }

  toggle(group) {
    group.open = !group.open;
    this.show();
    this.picture.look();
  }

  mark() {
    this.picture.select(this.selected, this.selected && this.visible(this.selected));
  }

  select(node) {
    this.selected = node;
    for (let group = node.parent; group; group = group.parent) group.open = true;
    this.show();
    this.picture.centre(node);
    this.describe(node);
  }

  // Return whether there is such a node.
  selectNamed(id) {
    const node = this.byId.get(id);
    if (node) this.select(node);
    return Boolean(node);
  }

  describe(node, missing = "") {
    if (!node) {
      const text = missing ? `${missing} is not in the graph here.` : "Select a node to see what it does.";
      this.details.replaceChildren(make("p", { class: "faint" }, text));
      return;
    }
    const readers = this.nodes.filter((other) => other.inputs.includes(node.id));
    const links = (names) => make("div", {}, ...names.map((name) => {
      const known = this.byId.get(name);
      return make("div", {}, known ? button(name, () => this.select(known), { class: "" }) : this.link(name));
    }));
    const rows = [...node.facts];
    if (node.inputs.length) rows.push(["reads", links(node.inputs)]);
    if (readers.length) rows.push(["read by", links(readers.map((other) => other.id))]);
    this.details.replaceChildren(make("h3", {}, node.id), showFacts([...rows, ...this.rows(node)]));
  }

  find(text) {
    const wanted = text.trim().toLowerCase();
    const holds = (node) => [node.id, ...node.facts.flat()].some((part) => part.toLowerCase().includes(wanted));
    this.matches = wanted ? this.nodes.filter(holds) : [];
    this.found.textContent = wanted ? `${this.matches.length} found, Enter shows the next` : "";
  }
}

function timeOf(group) {
  let total = group.nodes.reduce((sum, node) => sum + (node.time || 0), 0);
  for (const child of group.groups.values()) total += timeOf(child);
  return total;
}

function markedIn(group) {
  return group.nodes.some((node) => node.mark) || [...group.groups.values()].some(markedIn);
}
