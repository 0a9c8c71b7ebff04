// In what runs differ, side by side.
import {getJson} from './api.js';
import {el, short, showError, swatch} from './dom.js';
import {nameOf, rowOf} from './runs.js';
import {colorOfRun, state} from './state.js';

const kResults = {status: 'status', step: 'step', tokens: 'tokens', loss: 'loss', valid: 'validation loss',
                  bpb: 'bits per byte', rate: 'tokens/s', reason: 'reason', note: 'note'};

export async function showCompare(place) {
  if (state.run.length === 0) {
    place.replaceChildren(el('p', {class: 'hint', text: 'Choose runs from the list to see in what they differ.'}));
    return;
  }
  try {
    const {runs, differences} = await getJson('compare', {run: state.run});
    const head = el('tr', {}, el('th', {scope: 'col', text: 'key'}), ...runs.map(
        (run) => el('th', {scope: 'col', title: run}, swatch(colorOfRun(run)), nameOf(run))));
    const line = (name, values) => {
      return el('tr', {}, el('th', {scope: 'row'}, el('code', {text: name})),
                ...values.map((value) => el('td', {class: 'number', text: value === '' ? '\u2013' : value})));
    };
    const text = (value) => (typeof value === 'number' ? short(value) : value ?? '');
    const results = Object.entries(kResults).map(([key, label]) => line(label, runs.map((run) => text(rowOf(run)?.[key]))));
    const group = (name) => el('tr', {class: 'group'}, el('th', {scope: 'rowgroup', colspan: runs.length + 1, text: name}));
    const none = el('tr', {}, el('td', {colspan: runs.length + 1, text: runs.length > 1
        ? 'The configurations are the same.' : 'Choose a second run to compare its configuration.'}));
    place.replaceChildren(el('div', {class: 'scroll heat', tabindex: '0', role: 'region', 'aria-label': 'Comparison'},
                             el('table', {id: 'comparison'}, el('thead', {}, head),
                                el('tbody', {}, group('Results'), ...results),
                                el('tbody', {}, group('Configuration'),
                                   ...(differences.length > 0
                                       ? differences.map(({key, values}) => line(key, values)) : [none])))));
  } catch (error) {
    showError(place, error);
  }
}
