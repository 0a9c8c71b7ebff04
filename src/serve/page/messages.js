// What a run said on the terminal (train.log).
import {getText} from './api.js';
import {el, showError} from './dom.js';

export async function showMessages(place, run) {
  if (run === null) {
    place.replaceChildren(el('p', {class: 'hint', text: 'Choose a run from the list to read what it said.'}));
    return;
  }
  try {
    const text = await getText('log', {run});
    const old = place.querySelector('pre');
    const atEnd = old === null || old.scrollTop + old.clientHeight >= old.scrollHeight - 4;
    const top = old?.scrollTop ?? 0;
    const box = el('pre', {id: 'messages', tabindex: '0', role: 'log', 'aria-label': 'messages of the run'});
    for (const line of text.trimEnd().split('\n')) {
      const bad = /\b(warning|error|not finite|nan)\b/i.test(line);
      box.append(bad ? el('span', {class: 'bad', text: line}) : line, '\n');
    }
    if (text === '') box.textContent = 'This run has said nothing, or was made by a version that keeps no train.log.';
    place.replaceChildren(box);
    box.scrollTop = atEnd ? box.scrollHeight : top;
  } catch (error) {
    showError(place, error);
  }
}
