// Shows a recording: a chart and a list of its steps, the nodes before and after each, the history
// of a tensor, and the whole graph after a step.

const MOST_DRAWN = 24; // nodes of a step; more are listed only
const MOST_AROUND = 16; // of the tensors around them
const MOST_AT_ONCE = 400; // boxes of the whole graph; more are drawn when the reader rests

function showAttr(value) {
  return typeof value === "string" ? value : JSON.stringify(value);
}

// The words of a record, those that `other` has not marked: name = OP(inputs, attrs) type.
function formula(name, record, other, link) {
  const word = (text, isNew) => (other && isNew ? make("mark", {}, text) : text);
  const line = make("span", { class: "formula" }, link(name), " = ");
  if (!record.op) {
    let value = record.value === undefined ? "" : ` ${JSON.stringify(record.value)}`;
    if (record.ops && record.ops.length) value = ` from ${record.parameters.join(", ") || "literals"} by ${record.ops.join(", ")}`;
    line.append(word(record.role, !other || other.op), value);
  } else {
    const inputs = record.inputs.map((input, at) => {
      const shown = input === null ? "none" : link(input);
      return word(shown, !other || !other.op || other.inputs[at] !== input);
    });
    const attrs = Object.entries(record.attrs).map(([key, value]) => {
      const text = `${key}=${showAttr(value)}`;
      return word(text, !other || !other.op || text !== `${key}=${showAttr(other.attrs[key])}`);
    });
    const title = titleOf(record);
    line.append(word(title, !other || title !== titleOf(other)), "(");
    [...inputs, ...attrs].forEach((part, at) => line.append(at ? ", " : "", part));
    line.append(")");
  }
  line.append(make("span", { class: "faint" }, ` ${record.type}`));
  (record.blocks || []).forEach((lines, at) => {
    const known = new Set(((other || {}).blocks || [])[at] || []);
    const parts = lines.map((text) => word(`${text}\n`, !known.has(text)));
    line.append(make("pre", { class: "block" }, ...parts));
  });
  return line;
}

// What a node is called; an output after a node's first is called by its place.
function titleOf(record) {
  return record.part ? `${record.op} output ${record.part}` : record.op;
}

// What a record reads: absent inputs left out.
function inputsOf(record) {
  return (record.inputs || []).filter((input) => input !== null);
}

// The nodes of a graph view, at the position of the recording.
function graphNodes(recording, marks) {
  const end = (id, title, role, inputs) => ({
    id, title, subtitle: role, kind: "end", group: [], inputs, facts: [["role", role]],
    mark: inputs.length ? "" : marks.get(id),
  });
  const { inputs, outputs } = recording;
  const nodes = inputs.map((name) => end(name, name, recording.record(name).role, []));
  let module = "";
  for (const name of recording.order()) {
    const record = recording.record(name);
    const source = recording.source(record);
    if (source.line) module = source.module; // a node without a line belongs with the one before it
    const facts = [["op", record.op], ["result", record.type], ["module", module]];
    facts.push(...Object.entries(record.attrs).map(([key, value]) => [key, showAttr(value)]));
    facts.push(...(record.blocks || []).map((lines, at) => [`block ${at}`, lines.join("\n")]));
    if (source.line) facts.push(["source", source.line]);
    nodes.push({
      id: name, title: titleOf(record), subtitle: record.type, kind: "plain", inputs: inputsOf(record),
      group: module ? module.split(".") : [], facts, mark: marks.get(name),
    });
  }
  const states = inputs.filter((name) => recording.record(name).role === "state");
  const roles = outputs.map((_, at) => {
    const state = states[at - (outputs.length - states.length)];
    return state === undefined ? "output" : `next value of ${state}`;
  });
  return [...nodes, ...outputs.map((name, at) => end(`${name} (${roles[at]})`, name, roles[at], [name]))];
}

// A picture of the marked tensors and of what is around them, at the position of the recording.
function drawAround(recording, marks, label, select) {
  const shown = new Set([...marks.keys()].filter((name) => recording.tensors.has(name)));
  const around = new Set();
  for (const name of shown) {
    for (const input of inputsOf(recording.record(name))) {
      const isConstant = recording.record(input).role === "constant"; // the list has them
      if (!shown.has(input) && !isConstant) around.add(input);
    }
  }
  for (const name of recording.tensors.keys()) {
    const inputs = inputsOf(recording.record(name));
    if (!shown.has(name) && inputs.some((input) => shown.has(input))) around.add(name);
  }
  for (const name of [...around].slice(0, MOST_AROUND)) shown.add(name);
  const order = recording.order().filter((name) => shown.has(name));
  const items = [...[...shown].filter((name) => !recording.record(name).op), ...order];
  const edges = order.flatMap((name) => {
    const inputs = new Set(inputsOf(recording.record(name)).filter((input) => shown.has(input)));
    return [...inputs].map((input) => [input, name]);
  });
  const picture = new Picture(label);
  picture.paint(items, edges, (name) => {
    const record = recording.record(name);
    const kind = `${record.op ? "plain" : "end"} ${marks.has(name) ? "" : "around"}`;
    const title = shorten(record.op ? titleOf(record) : record.role, 26);
    return { kind, title, subtitle: name, label: `${title} ${name}`, mark: marks.get(name), action: () => select(name) };
  });
  picture.fit(Infinity);
  picture.svg.style.aspectRatio = `${picture.box.width} / ${picture.box.height}`;
  return picture.svg;
}

function marksOf({ before, after }) {
  const marks = new Map();
  for (const name of before.keys()) marks.set(name, after.has(name) ? "changed" : "removed");
  for (const name of after.keys()) if (!before.has(name)) marks.set(name, "added");
  return marks;
}

// -- one step --------------------------------------------------------------------------------------

// Return what one step did. The recording stands after it when this returns.
function showStep(recording, number, link, follow) {
  const step = recording.steps[number];
  const pass = recording.passOf[number];
  const marks = marksOf(step);
  const source = recording.sourceOf(number);
  const facts = [["pass", pass.stage ? `${pass.name}, stage ${pass.stage}` : pass.name]];
  if (step.node) facts.push(["applied at", link(step.node)]);
  if (source.module) facts.push(["module", source.module]);
  if (source.line) facts.push(["source", make("code", {}, source.line)]);
  const sides = make("div", { class: "sides" });
  for (const [title, own, other, position] of [
    ["Before", step.before, step.after, number], ["After", step.after, step.before, number + 1],
  ]) {
    recording.move(position);
    const order = recording.order();
    const inOrder = [...own].sort(([a], [b]) => order.indexOf(a) - order.indexOf(b));
    const lines = inOrder.map(([name, place]) => {
      const mark = marks.get(name);
      const against = other.has(name) ? recording.records[other.get(name)] : null;
      const sign = make("span", { class: "sign", title: mark }, SIGNS[mark]);
      return make("li", { class: mark }, sign, " ", formula(name, recording.records[place], against, link));
    });
    const side = make("div", { class: "side" }, make("h4", {}, title));
    if (marks.size <= MOST_DRAWN) side.append(drawAround(recording, marks, `${title}: the nodes of this step`, follow));
    side.append(lines.length ? make("ul", {}, ...lines) : make("p", { class: "faint" }, "nothing"));
    sides.append(side);
  }
  const notes = [];
  if (marks.size > MOST_DRAWN) notes.push(make("p", { class: "faint" }, `${marks.size} tensors: too many to draw.`));
  if (step.outputs) notes.push(make("p", {}, `outputs: ${step.outputs[0].join(", ")} \u2192 ${step.outputs[1].join(", ")}`));
  return [make("h3", {}, step.rule), showFacts(facts), ...notes, sides];
}

function showLowered(recording) {
  recording.move(0);
  return [
    make("h3", {}, "The graph as lowered"),
    make("p", {}, `${recording.counts[0]} nodes, before the first step.`),
    make("p", { class: "faint" }, "Next, or the right arrow key, goes through what the compiler did to them."),
  ];
}

// -- the history of one tensor ---------------------------------------------------------------------

class HistoryView {
  constructor(recording, link, go) {
    Object.assign(this, { recording, link, go });
    this.search = make("input", { type: "search", placeholder: "Name of a tensor", "aria-label": "Follow a tensor" });
    this.names = make("datalist", { id: "tensors" });
    this.names.append(...[...recording.lives.keys()].map((name) => make("option", { value: name })));
    this.search.setAttribute("list", "tensors");
    this.search.addEventListener("change", () => this.find(this.search.value.trim()));
    this.body = make("div", { "aria-live": "polite" });
    this.body.append(make("p", { class: "faint" }, "Select a tensor anywhere to see where it comes from and what became of it."));
    this.element = make("section", { class: "history", "aria-label": "History of a tensor" },
      make("h3", {}, "Follow a tensor"), this.search, this.names, this.body);
    this.life = null;
  }

  find(text) {
    const names = [...this.recording.lives.keys()];
    const found = names.find((name) => name === text) || names.find((name) => name.includes(text));
    if (found !== undefined) this.follow(found);
    else this.body.replaceChildren(make("p", { role: "status" }, `No tensor is called ${text}.`));
  }

  follow(name) {
    const life = this.recording.life(name, this.recording.position);
    if (!life) return;
    this.life = life;
    this.search.value = name;
    this.show();
  }

  // The tensor under all the names that it had.
  earlier() {
    const family = [this.life];
    const before = (life) => life.replaced.find((old) => old.died === life.born);
    for (let life = before(this.life); life && !family.includes(life); life = before(life)) family.unshift(life);
    return family;
  }

  // What those that read it read later, one after the other.
  later() {
    const heirs = [];
    for (let { heir } = this.life; heir && !heirs.includes(heir); { heir } = heir) heirs.push(heir);
    return heirs;
  }

  show() {
    const [family, heirs] = [this.earlier(), this.later()];
    const entries = family.flatMap((life) => [...this.entries(life), ...this.replacing(life, family)]);
    let since = this.life.died;
    for (const heir of heirs) { // of an heir, what happened since
      entries.push(...this.entries(heir).filter(({ number }) => number > since));
      since = heir.died;
    }
    entries.sort((a, b) => a.number - b.number);
    const items = entries.map(({ number, words }) => {
      const here = number === this.recording.position - 1;
      const where = number < 0 ? "as lowered" : `step ${number + 1}`;
      const place = button(where, () => this.go(number + 1), here ? { "aria-current": "step" } : {});
      return make("li", {}, place, " ", ...words);
    });
    const last = [this.life, ...heirs].at(-1);
    const end = last.died === null ? "It is in the final graph." : "It is not in the final graph.";
    this.body.replaceChildren(make("h4", {}, this.life.name), make("ol", {}, ...items), make("p", { class: "faint" }, end));
  }

  entries({ name, born, died, changes, heir }) {
    const { steps, records, lowered } = this.recording;
    const line = (places, other) => formula(name, records[places.get(name)], other && records[other.get(name)], this.link);
    const entries = [];
    if (born < 0) entries.push({ number: -1, words: [line(lowered)] });
    else {
      const { rule, before, after } = steps[born];
      entries.push({ number: born, words: [`${rule} made `, line(after), ...this.listed(", from ", before, name)] });
    }
    for (const number of changes) {
      const { rule, before, after } = steps[number];
      const lines = [["removed", line(before, after)], ["added", line(after, before)]];
      const shown = lines.map(([mark, text]) => make("div", { class: mark }, SIGNS[mark], " ", text));
      entries.push({ number, words: [`${rule} changed it`, ...shown] });
    }
    if (died !== null) {
      const { rule, after } = steps[died];
      const words = heir ? ["; its readers read ", this.link(heir.name)] : this.listed("; what is new: ", after, name);
      entries.push({ number: died, words: [`${rule} removed `, this.link(name), ...words] });
    }
    return entries;
  }

  // Other tensors whose readers read this one later.
  replacing(life, family) {
    const others = life.replaced.filter((other) => !family.includes(other));
    return others.map((other) => {
      const { rule } = this.recording.steps[other.died];
      return { number: other.died, words: [`${rule} put it in the place of `, this.link(other.name)] };
    });
  }

  listed(text, places, name) {
    const names = [...places.keys()].filter((each) => each !== name);
    if (!names.length) return [];
    const links = names.slice(0, 6).flatMap((each, at) => [at ? ", " : text, this.link(each)]);
    return names.length > 6 ? [...links, ` and ${names.length - 6} more`] : links;
  }
}

// -- all of it -------------------------------------------------------------------------------------

class TraceView {
  constructor(section) {
    this.recording = new Recording(section);
    const { steps } = this.recording;
    this.link = (name) => { // no button element: long names wrap as text does
      const link = make("span", { class: "name", role: "button", tabindex: "0" }, name);
      press(link, () => this.follow(name));
      return link;
    };
    this.history = new HistoryView(this.recording, this.link, (position) => this.go(position));
    this.card = make("div", { class: "step", "aria-live": "polite", tabindex: "0", role: "group", "aria-label": "The step" });
    this.stepper = new Stepper({
      count: steps.length,
      unit: "step",
      start: "as lowered",
      title: (number) => `${steps[number].rule}  ${shortenPath(steps[number].node, 22)}`,
      group: (number) => {
        const pass = this.recording.passOf[number];
        return pass.stage ? `${pass.stage}: ${pass.name}` : pass.name;
      },
      text: (number) => this.recording.text(number),
      search: "Search steps: tensor, op, rule, line",
      show: (position) => this.show(position),
    });
    this.chart = this.makeChart();
    this.graph = new GraphView(
      { title: "The whole graph after this step", nodes: graphNodes(this.recording, new Map()) },
      { link: this.link, rows: (node) => [["history", button("Follow it", () => this.follow(node.id))]] },
    );
    const columns = make("div", { class: "trace" }, this.stepper.list, this.card, this.history.element);
    const whole = make("h3", {}, "The whole graph after this step");
    this.element = make("div", {}, this.stepper.tools, this.chart.element, columns, whole, this.graph.element);
    this.go(this.stepper.fromAddress());
  }

  makeChart() {
    const { counts, steps, passes } = this.recording;
    const stages = [];
    for (const { stage, steps: [from, to] } of passes) {
      if (stages.length && stages.at(-1).stage === stage) stages.at(-1).to = to;
      else if (from < to) stages.push({ stage, from, to });
    }
    return new Chart({
      title: `Nodes of the graph: ${counts[0]} as lowered, ${counts.at(-1)} in the end`,
      note: "Nodes of the graph after each step. The background changes from stage to stage. Click to go to a step.",
      values: counts, labels: ["as lowered", ...steps.map(({ rule, node }) => `${rule} ${node}`)],
      bands: stages.filter((_, index) => index % 2 === 1).map(({ from, to }) => [from + 1, to + 1]),
      show: (count) => `${count} nodes`, select: (step) => this.go(step),
    });
  }

  go(position) {
    this.stepper.go(position);
  }

  show(at) {
    const follow = (name) => this.follow(name);
    const shown = at === 0 ? showLowered(this.recording) : showStep(this.recording, at - 1, this.link, follow);
    this.card.replaceChildren(...shown, ...this.places(at));
    this.chart.mark(at);
    this.chart.tell(at);
    clearTimeout(this.waiting);
    if (this.graph.picture.shapes.size <= MOST_AT_ONCE) this.updateGraph();
    else this.waiting = setTimeout(() => this.updateGraph(), 300);
    if (this.history.life) this.history.show();
  }

  updateGraph() {
    const at = this.recording.position;
    this.graph.update(graphNodes(this.recording, at === 0 ? new Map() : marksOf(this.recording.steps[at - 1])));
  }

  // A button that shows where the graph has what a step made.
  places(position) {
    const names = position ? [...this.recording.steps[position - 1].after.keys()] : [];
    const name = names.find((each) => (this.recording.record(each) || {}).op);
    if (name === undefined) return [];
    const show = () => {
      this.updateGraph();
      this.graph.selectNamed(name);
      this.graph.element.scrollIntoView({ block: "center" });
    };
    return [make("div", { class: "tools" }, button("Show in the whole graph", show))];
  }

  follow(name) {
    this.history.follow(name);
    this.graph.selectNamed(name);
  }
}

SECTIONS.trace = (section) => {
  const view = new TraceView(section);
  const there = () => view.element.scrollIntoView({ block: "start" });
  follow.step = (position) => { view.go(position); there(); };
  follow.tensor = (name) => { view.follow(name); there(); };
  return view.element;
};
