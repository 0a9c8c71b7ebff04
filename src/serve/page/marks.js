// Marks of one's own on the charts, such as "step 1200 lower rate". They are in the address alone: whoever gets the link
// sees them, and nothing of a run is changed.
import {byId, duration, el, short} from './dom.js';
import {change, state} from './state.js';

function parse(mark) {
  const [axis, x, ...words] = mark.split(' ');
  return {mark, axis, x: Number(x), text: words.join(' ')};
}

// Those of an axis: {mark, axis, x, text} each.
export const marksOf = (axis) => state.mark.map(parse).filter((one) => one.axis === axis && Number.isFinite(one.x));

const isTime = (axis) => axis === 'time' || axis === 'training';

export function fillMarks() {
  const place = byId('mark-list');
  if (place === null) return;
  const rows = state.mark.map(parse).map(({mark, axis, x, text}) => {
    const remove = el('button', {type: 'button', text: '\u2715', 'aria-label': `remove the mark ${text}`, onclick: () => {
      change({mark: state.mark.filter((one) => one !== mark)});
    }});
    return el('li', {}, `${isTime(axis) ? duration(x) : short(x)} (${axis}): ${text} `, remove);
  });
  place.replaceChildren(...rows);
  byId('mark-menu').firstChild.textContent = rows.length === 0 ? 'Marks' : `Marks (${rows.length})`;
}

export function markMenu() {
  const at = el('input', {id: 'mark-at', type: 'number', step: 'any', required: true});
  const text = el('input', {id: 'mark-text', type: 'text', maxlength: '80', required: true});
  const form = el('form', {onsubmit: (event) => {
    event.preventDefault();
    const mark = `${state.x} ${Number(at.value)} ${text.value.trim()}`;
    text.value = '';
    if (!state.mark.includes(mark)) change({mark: [...state.mark, mark]});
  }}, el('label', {}, 'at ', at), el('label', {}, 'text ', text), el('button', {text: 'Add'}));
  return el('details', {class: 'menu', id: 'mark-menu'}, el('summary', {text: 'Marks'}),
            el('div', {}, form, el('ul', {id: 'mark-list', class: 'plain'})));
}

// For one at `x` of the axis; the text is still to be given.
export function beginMark(x) {
  const menu = byId('mark-menu');
  if (menu === null || x === null) return;
  menu.open = true;
  byId('mark-at').value = String(Number(x.toPrecision(6)));
  byId('mark-text').focus();
}
