// Where routers send tokens: layers by experts at one step, with all steps under a slider.
import {getLayers} from './api.js';
import {el, short, showError} from './dom.js';
import {change, state} from './state.js';

const kRow = 12;       // pixels of a layer's row, at least
const kHeight = 360;   // of all, where few layers leave room
const kMostRow = 32;

// An expert that got nothing.
const deadColor = (dark) => (dark ? [255, 90, 80] : [190, 20, 20]);

// From blue (little) over the card's own grey (even) to orange (much); `value` from -1 to 1.
function color(value, dark) {
  const t = Math.max(-1, Math.min(1, value));
  const middle = dark ? [58, 65, 75] : [226, 229, 233];
  const end = t < 0 ? (dark ? [92, 150, 245] : [33, 92, 190]) : (dark ? [255, 160, 70] : [205, 88, 10]);
  return middle.map((from, i) => Math.round(from + (end[i] - from) * Math.abs(t)));
}

export class Router {
  constructor(run) {
    this.run = run;
    this.frame = null;
    this.at = null;  // null: the last step, whatever it is
    this.asking = null;
    this.cell = null;
    this.slider = el('input', {type: 'range', class: 'scrub', id: 'scrub', min: '0', max: '0', value: '0',
                               'aria-label': 'step', oninput: () => this.scrub(Number(this.slider.value))});
    this.step = el('output', {for: 'scrub', class: 'number'});
    this.play = el('button', {type: 'button', text: 'Play', onclick: () => this.togglePlay()});
    const kind = el('select', {onchange: (event) => change({of: event.target.value})},
                    el('option', {value: 'load', text: 'load'}), el('option', {value: 'bias', text: 'bias'}));
    kind.value = state.of;
    this.canvas = el('canvas', {tabindex: '0', role: 'img', id: 'heat', 'aria-describedby': 'heat-cell'});
    this.canvas.addEventListener('mousemove', (event) => {
      const box = this.canvas.getBoundingClientRect();
      this.point((event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width);
    });
    this.canvas.addEventListener('keydown', (event) => this.onKey(event));
    this.summary = el('p', {id: 'heat-summary'});
    this.reading = el('p', {class: 'hint', id: 'heat-cell', role: 'status'});
    this.scale = el('canvas', {class: 'scale', width: '96', height: '1', 'aria-hidden': 'true'});
    this.scaleText = el('span', {class: 'hint'});
    this.element = el('div', {class: 'heat'},
                      el('div', {class: 'row tools'}, el('label', {}, 'show ', kind), this.play, this.slider, this.step),
                      this.summary, this.canvas, this.reading,
                      el('div', {class: 'row'}, this.scale, this.scaleText));
    this.timer = 0;
    this.pending = null;
  }

  async refresh() {
    this.asking?.abort();
    this.asking = new AbortController();
    try {
      this.frame = await getLayers({run: this.run, of: state.of, at: this.at ?? ''}, this.asking.signal);
      this.draw();
    } catch (error) {
      if (error.name !== 'AbortError') showError(this.summary, error);
    }
  }

  // While a step is on its way the newest wish waits; so a fast slider does not queue up.
  async scrub(at) {
    this.pending = at;
    if (this.scrubbing) return;
    this.scrubbing = true;
    while (this.pending !== null) {
      const last = this.frame === null || this.pending >= this.frame.steps - 1;
      this.at = last && this.timer === 0 ? null : this.pending;
      this.pending = null;
      await this.refresh();
    }
    this.scrubbing = false;
  }

  togglePlay() {
    if (this.timer !== 0) {
      clearInterval(this.timer);
      this.timer = 0;
    } else if (this.frame !== null && this.frame.steps > 1) {
      if (this.at === null || this.at >= this.frame.steps - 1) this.at = 0;
      this.timer = setInterval(() => {
        if (this.scrubbing) return;
        if (this.at + 1 >= this.frame.steps) this.togglePlay();
        else this.scrub(this.at + 1);
      }, 60);
    }
    this.play.textContent = this.timer === 0 ? 'Play' : 'Pause';
  }

  // Of a cell: what is drawn, from -1 to 1.
  shade(layer, value) {
    if (state.of === 'load') return Math.log2(value / this.means[layer]) / 2;
    return this.most > 0 ? value / this.most : 0;
  }

  draw() {
    const {layers, columns, values, steps, step} = this.frame;
    const has = layers.length > 0 && columns > 0;
    for (const part of [this.canvas, this.slider, this.play, this.scale, this.reading]) part.hidden = !has;
    if (!has) {
      this.summary.textContent = `This run has recorded no ${state.of} of experts: its model may have none.`;
      return;
    }
    this.slider.max = String(steps - 1);
    this.slider.value = String(this.at ?? steps - 1);
    this.slider.setAttribute('aria-valuetext', `step ${step}`);
    this.step.textContent = `step ${step}`;
    this.means = [...layers].map((_, layer) => {
      const row = values.subarray(layer * columns, (layer + 1) * columns).filter((value) => !Number.isNaN(value));
      return row.length === 0 ? 1 : row.reduce((sum, value) => sum + value, 0) / row.length || 1;
    });
    this.most = values.reduce((most, value) => (Number.isFinite(value) ? Math.max(most, Math.abs(value)) : most), 0);
    this.summary.textContent = this.describe();
    const dark = document.documentElement.dataset.theme === 'dark';
    const image = new ImageData(columns, layers.length);
    for (let i = 0; i < values.length; ++i) {
      const known = !Number.isNaN(values[i]);
      const dead = state.of === 'load' && values[i] === 0;
      const [r, g, b] = dead ? deadColor(dark) : color(this.shade(Math.floor(i / columns), values[i]), dark);
      image.data.set([r, g, b, known ? 255 : 0], 4 * i);
    }
    this.canvas.width = columns;
    this.canvas.height = layers.length;
    const row = Math.max(kRow, Math.min(kMostRow, Math.floor(kHeight / layers.length)));
    this.canvas.style.height = `${layers.length * row}px`;
    this.canvas.getContext('2d').putImageData(image, 0, 0);
    this.drawScale(dark);
    this.canvas.setAttribute('aria-label',
                             `${state.of} of ${columns} experts in ${layers.length} layers. ${this.summary.textContent}`);
    this.tell();
  }

  describe() {
    const {layers, columns, values} = this.frame;
    if (state.of !== 'load') return `${columns} experts, ${layers.length} layers; the largest bias is ${short(this.most)}`;
    let [dead, most, where] = [0, 0, 0];
    for (let i = 0; i < values.length; ++i) {
      if (values[i] === 0) ++dead;
      const over = values[i] / this.means[Math.floor(i / columns)];
      if (over > most) [most, where] = [over, i];
    }
    return `${columns} experts, ${layers.length} layers; ${dead} without a token; the fullest has ${short(most)} times ` +
        `its layer's mean (layer ${layers[Math.floor(where / columns)]}, expert ${where % columns})`;
  }

  drawScale(dark) {
    const image = new ImageData(96, 1);
    for (let i = 0; i < 96; ++i) image.data.set([...color(i / 47.5 - 1, dark), 255], 4 * i);
    this.scale.getContext('2d').putImageData(image, 0, 0);
    this.scaleText.textContent = state.of === 'load' ? 'a quarter of the mean or less, to four times the mean or more; red: no token'
        : `${short(-this.most)} to ${short(this.most)}`;
  }

  point(down, right) {
    if (this.frame === null) return;
    const {layers, columns} = this.frame;
    const at = (share, count) => Math.max(0, Math.min(count - 1, Math.floor(share * count)));
    this.cell = [at(down, layers.length), at(right, columns)];
    this.tell();
  }

  tell() {
    if (this.cell === null) {
      this.reading.textContent = 'A row is a layer, a column an expert; point at one, or use the arrow keys.';
      return;
    }
    const {layers, columns, values} = this.frame;
    const [layer, expert] = this.cell;
    if (layer >= layers.length || expert >= columns) return;
    const value = values[layer * columns + expert];
    const share = state.of === 'load' ? `, ${short(value / this.means[layer])} of the mean` : '';
    this.reading.textContent = `layer ${layers[layer]}, expert ${expert}: ${short(value)}${share}`;
  }

  onKey(event) {
    const move = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]}[event.key];
    if (!move || this.frame === null) return;
    const {layers, columns} = this.frame;
    const [layer, expert] = this.cell ?? [0, 0];
    const within = (value, count) => Math.max(0, Math.min(count - 1, value));
    this.cell = [within(layer + move[0], layers.length), within(expert + move[1], columns)];
    this.tell();
    event.preventDefault();
  }

  destroy() {
    this.asking?.abort();
    clearInterval(this.timer);
  }
}
