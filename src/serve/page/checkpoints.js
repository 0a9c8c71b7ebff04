// A run's checkpoints.
import {getJson} from './api.js';
import {el, short, showError} from './dom.js';

function size(bytes) {
  const power = bytes < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(bytes) / 10));
  return `${Number((bytes / 1024 ** power).toPrecision(3))} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}`;
}

export async function showCheckpoints(place, run) {
  if (run === null) {
    place.replaceChildren(el('p', {class: 'hint', text: 'Choose a run from the list to see its checkpoints.'}));
    return;
  }
  try {
    const {checkpoints} = await getJson('checkpoints', {run});
    if (checkpoints.length === 0) {
      place.replaceChildren(el('p', {class: 'hint', text: 'There is none of this run beside what it has recorded.'}));
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
                                el('tbody', {}, ...rows))));
  } catch (error) {
    showError(place, error);
  }
}
