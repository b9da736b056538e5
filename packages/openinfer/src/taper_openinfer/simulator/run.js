// Shows recorded steps of a program: its nodes in the order in which they ran, and what variables
// and caches are after each.

const KINDS = ["dynamic", "persistent", "volatile", "temporary", "constant"];

class RunView {
  constructor({ variables, values, steps }) {
    Object.assign(this, { variables, values, steps });
    this.changes = variables.map(() => []); // of each: numbers of steps and the values after them
    steps.forEach(({ after }, number) => {
      for (const [variable, value] of Object.entries(after)) this.changes[variable].push([number, value]);
    });
    this.order = variables.map((_, index) => index).sort((a, b) => {
      const rank = (index) => KINDS.indexOf(variables[index].kind);
      return rank(a) - rank(b) || a - b;
    });
    this.followed = null;
    this.card = make("div", { class: "step", "aria-live": "polite", tabindex: "0", role: "group", "aria-label": "The step" });
    this.stepper = new Stepper({
      count: steps.length,
      unit: "event",
      start: "before the first step",
      title: (number) => shorten(steps[number].title, 40),
      group: (number) => `step ${steps[number].step}${steps[number].block ? `: ${steps[number].block}` : ""}`,
      text: (number) => this.text(number),
      search: "Search nodes: op, variable, block",
      show: (position) => this.show(position),
    });
    this.makeHistory();
    const columns = make("div", { class: "trace" }, this.stepper.list, this.card, this.history);
    this.element = make("div", {}, this.stepper.tools, columns);
    this.stepper.go(this.stepper.fromAddress());
  }

  text(number) {
    const { title, block, after } = this.steps[number];
    const names = Object.keys(after).map((variable) => this.variables[variable].name);
    return [title, block, ...names].join("\n").toLowerCase();
  }

  // The value of a variable where `position` steps are done; null where it has none.
  value(variable, position) {
    const last = this.changes[variable].findLast(([number]) => number < position);
    return last === undefined || last[1] === null ? null : this.values[last[1]];
  }

  link(variable) {
    const link = make("span", { class: "name", role: "button", tabindex: "0" }, this.variables[variable].name);
    press(link, () => this.follow(variable));
    return link;
  }

  showValue(value) {
    if (value === null) return make("div", { class: "faint" }, "not loaded");
    const lines = value.lines.map((line) => make("div", {}, line));
    return make("div", { class: "value" }, make("span", { class: "faint" }, `[${value.shape.join(", ")}]`), ...lines);
  }

  show(position) {
    const step = position ? this.steps[position - 1] : null;
    const title = step ? step.title : "Before the first step";
    const changed = step ? Object.keys(step.after).map(Number) : [];
    const body = make("tbody");
    for (const variable of this.order) {
      const { kind, type } = this.variables[variable];
      const isChanged = changed.includes(variable);
      const sign = make("span", { class: "sign", title: isChanged ? "changed" : "" }, isChanged ? "~" : "");
      body.append(make("tr", { class: isChanged ? "changed" : "" },
        make("td", {}, sign, " ", this.link(variable)), make("td", {}, kind), make("td", {}, type),
        make("td", {}, this.showValue(this.value(variable, position)))));
    }
    const head = make("tr", {}, ...["variable", "memory", "declared", "value"].map((name) => make("th", { scope: "col" }, name)));
    const table = make("table", { class: "variables", "aria-label": "Variables after this node" }, make("thead", {}, head), body);
    this.card.replaceChildren(make("h3", {}, title), showFacts(step ? step.facts : []), table);
    if (this.followed !== null) this.follow(this.followed);
  }

  makeHistory() {
    const search = make("input", { type: "search", placeholder: "Name of a variable", "aria-label": "Follow a variable", list: "variables" });
    const names = make("datalist", { id: "variables" }, ...this.variables.map(({ name }) => make("option", { value: name })));
    search.addEventListener("change", () => {
      const found = this.variables.findIndex(({ name }) => name === search.value.trim());
      if (found >= 0) this.follow(found);
      else this.body.replaceChildren(make("p", { role: "status" }, `No variable is called ${search.value}.`));
    });
    this.body = make("div", {}, make("p", { class: "faint" }, "Select a variable to see what wrote it."));
    this.history = make("section", { class: "history", "aria-label": "History of a variable" },
      make("h3", {}, "Follow a variable"), search, names, this.body);
  }

  follow(variable) {
    this.followed = variable;
    const items = this.changes[variable].map(([number, value]) => {
      const here = number === this.stepper.position - 1 ? { "aria-current": "step" } : {};
      const place = button(`event ${number + 1}`, () => this.stepper.go(number + 1), here);
      const shown = this.showValue(value === null ? null : this.values[value]);
      return make("li", {}, place, " ", this.steps[number].title, shown);
    });
    const none = make("p", { class: "faint" }, "Nothing has needed it.");
    this.body.replaceChildren(make("h4", {}, this.variables[variable].name), items.length ? make("ol", {}, ...items) : none);
  }
}

SECTIONS.run = (section) => new RunView(section).element;
