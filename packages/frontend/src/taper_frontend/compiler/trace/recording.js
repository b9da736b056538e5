// A recording of what the compiler did: the graph after any number of its steps, and what became of
// each tensor. `position` counts the steps that are done: 0 is the graph as lowered.

class Recording {
  constructor({ sources, records, lowered, passes, steps }) {
    Object.assign(this, { sources, records, passes });
    const map = (object) => new Map(Object.entries(object || {})); // names may be "constructor"
    this.steps = steps.map((step) => ({
      ...step, before: map(step.before), after: map(step.after), became: map(step.became),
    }));
    this.position = 0;
    this.lowered = map(lowered.tensors);
    this.tensors = new Map(this.lowered);
    this.inputs = lowered.inputs; // and states
    this.outputs = lowered.outputs; // and the states' next values
    this.passOf = steps.map(() => null);
    for (const pass of passes) this.passOf.fill(pass, ...pass.steps);
    this.counts = [this.countNodes(this.tensors)];
    for (const { before, after } of this.steps) {
      this.counts.push(this.counts.at(-1) + this.countNodes(after) - this.countNodes(before));
    }
    this.findLives();
    this.texts = steps.map(() => null);
  }

  countNodes(places) {
    return [...places.values()].filter((place) => this.records[place].op && !this.records[place].part).length;
  }

  // Go to where `position` steps are done.
  move(position) {
    while (this.position < position) this.apply(this.steps[this.position++], "before", "after", 1);
    while (this.position > position) this.apply(this.steps[--this.position], "after", "before", 0);
  }

  apply(step, from, to, end) {
    for (const name of step[from].keys()) if (!step[to].has(name)) this.tensors.delete(name);
    for (const [name, place] of step[to]) this.tensors.set(name, place);
    if (step.inputs) this.inputs = step.inputs[end];
    if (step.outputs) this.outputs = step.outputs[end];
  }

  record(name) {
    return this.tensors.has(name) ? this.records[this.tensors.get(name)] : null;
  }

  source(record) {
    const [line, module] = this.sources[record.source || 0];
    return { line, module };
  }

  // The names of the nodes, each after what it reads; a broken rule may have left a cycle.
  order() {
    const done = new Set();
    const met = new Set();
    const isNode = (name) => (this.record(name) || {}).op;
    for (const root of this.tensors.keys()) {
      const stack = isNode(root) ? [root] : [];
      while (stack.length) {
        const name = stack.at(-1);
        const waiting = met.has(name) ? [] : this.record(name).inputs.filter((each) => isNode(each) && !met.has(each));
        met.add(name);
        if (waiting.length) stack.push(...waiting.reverse());
        else done.add(stack.pop());
      }
    }
    return [...done];
  }

  // What a step's words are searched in.
  text(number) {
    if (this.texts[number] === null) {
      const { rule, node, before, after } = this.steps[number];
      const words = [rule, node, this.passOf[number].name, this.passOf[number].stage];
      for (const [name, place] of [...before, ...after]) {
        const record = this.records[place];
        words.push(name, record.op || "", this.source(record).line);
      }
      this.texts[number] = words.join("\n").toLowerCase();
    }
    return this.texts[number];
  }

  // Where a step comes from: the line of the node it was applied at, or of one that it changed.
  sourceOf(number) {
    const { node, before, after } = this.steps[number];
    const places = [before.get(node), after.get(node), ...before.values(), ...after.values()];
    const known = places.find((place) => place !== undefined && this.records[place].source);
    return this.source(known === undefined ? {} : this.records[known]);
  }

  // A name may be given again after its tensor has gone: each tensor is a life of its name, from
  // `born` to `died`, numbers of steps (-1: as lowered; null: still there), changed at `changes`.
  // What read it reads `heir` afterwards; `replaced` are those that it is the heir of.
  findLives() {
    this.lives = new Map();
    const begin = (name, born) => {
      const life = { name, born, died: null, changes: [], heir: null, replaced: [] };
      if (!this.lives.has(name)) this.lives.set(name, []);
      this.lives.get(name).push(life);
    };
    for (const name of this.tensors.keys()) begin(name, -1);
    this.steps.forEach(({ before, after, became }, number) => {
      for (const name of after.keys()) if (!before.has(name)) begin(name, number);
      for (const name of before.keys()) {
        const life = this.lives.get(name).at(-1);
        if (after.has(name)) life.changes.push(number);
        else life.died = number;
      }
      for (const old of became.keys()) this.inherit(old, became, number);
    });
  }

  inherit(old, became, number) {
    const seen = new Set();
    let name = old;
    while (became.has(name) && !seen.has(name)) {
      seen.add(name);
      name = became.get(name);
    }
    const [life, heir] = [old, name].map((each) => (this.lives.get(each) || []).at(-1));
    if (life && heir && life !== heir && life.died === number) {
      life.heir = heir;
      heir.replaced.push(life);
    }
  }

  // The tensor that has a name at a position; if none has, the last one before, or the first after.
  life(name, position) {
    const all = this.lives.get(name) || [];
    return all.findLast((life) => life.born < position) || all[0] || null;
  }
}
