// A run's checkpoints, and what its model wrote at validations.
import {getJson} from './api.js';
import {el, short, showError, size} from './dom.js';

// What the model wrote behind the run's prompts, step by step; the last is open.
function sampleTexts(sets) {
  return el('section', {id: 'samples', class: 'heat', 'aria-label': 'Sample texts'},
            el('h2', {text: 'Sample texts'}),
            ...sets.reverse().map(({step, samples}, i) => el('details', {open: i === 0},
                el('summary', {text: `step ${step}`}),
                ...samples.map(({prompt, text}) => el('p', {class: 'words'}, el('strong', {text: prompt}), text)))));
}

export async function showCheckpoints(place, run) {
  if (run === null) {
    place.replaceChildren(el('p', {class: 'hint', text: 'Choose a run from the list to see its checkpoints.'}));
    return;
  }
  try {
    const [{checkpoints}, {sets}] = await Promise.all([getJson('checkpoints', {run}), getJson('samples', {run})]);
    const texts = sets.length > 0 ? [sampleTexts(sets)] : [];
    if (checkpoints.length === 0) {
      place.replaceChildren(el('p', {class: 'hint', text: 'There is no checkpoint of this run where its records are.'}), ...texts);
      return;
    }
    const head = ['step', 'tokens', 'size', 'written', 'hash of the weights'].map(
        (text) => el('th', {scope: 'col', text}));
    const rows = checkpoints.reverse().map((one) => el('tr', {},
        el('th', {scope: 'row', class: 'number', text: one.step}),
        ...(one.fault ? [el('td', {colspan: 4, class: 'status-bad name', text: one.fault})] : [
          el('td', {class: 'number', text: short(one.tokens)}), el('td', {class: 'number', text: size(one.bytes)}),
          el('td', {text: one.created.replace('T', ' ').replace('Z', '')}),
          el('td', {class: 'name'}, el('code', {text: one.weights_sha256}))])));
    place.replaceChildren(el('div', {class: 'scroll heat', tabindex: '0', role: 'region', 'aria-label': 'Checkpoints'},
                             el('table', {id: 'checkpoints'}, el('thead', {}, el('tr', {}, ...head)),
                                el('tbody', {}, ...rows))), ...texts);
  } catch (error) {
    showError(place, error);
  }
}
