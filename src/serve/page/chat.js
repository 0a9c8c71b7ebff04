// Talks with the model of n serve through its own API. What a model writes is shown as text, never as markup.
import {byId, el} from './dom.js';
import {startTheme} from './theme.js';

let messages = [];  // {role, content}, without the system prompt
let answering = null;
let model = '';

function headers() {
  const key = byId('key').value;
  return key === '' ? {} : {Authorization: `Bearer ${key}`};
}

async function ask(path, options = {}) {
  const reply = await fetch(path, {...options, headers: {...headers(), ...options.headers}});
  if (reply.ok) return reply;
  let message = `the server answered ${reply.status}`;
  try {
    message = (await reply.json()).error.message;
  } catch { /* it is not our server that answers */ }
  throw new Error(message);
}

function show(role, text) {
  const words = el('p', {class: 'words', text});
  byId('said').append(el('section', {class: `turn ${role}`, 'aria-label': role === 'user' ? 'you' : 'model'},
                         el('h2', {text: role === 'user' ? 'you' : model || 'model'}), words));
  byId('said').scrollTop = byId('said').scrollHeight;
  return words;
}

function say(text, bad = false) {
  byId('connection').textContent = text;
  byId('connection').className = bad ? 'lost' : '';
}

async function findModel() {
  try {
    model = (await (await ask('v1/models')).json()).data[0].id;
    byId('model').textContent = model;
    document.title = `${model} - nmoe chat`;
    say('');
  } catch (error) {
    say(error.message, true);
  }
}

// The pieces of a streamed answer.
async function* piecesOf(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = '';;) {
    const {value, done} = await reader.read();
    if (done) throw new Error('the answer was cut off');
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: ')) continue;
      if (line === 'data: [DONE]') return;
      const event = JSON.parse(line.slice(6));
      if (event.error) throw new Error(event.error.message);
      yield event.choices[0]?.delta?.content ?? '';
    }
  }
}

async function answer() {
  const system = byId('system').value;
  const request = {model: model || undefined, stream: true,
                   messages: system === '' ? messages : [{role: 'system', content: system}, ...messages]};
  if (byId('temperature').value !== '') request.temperature = Number(byId('temperature').value);
  if (byId('max-tokens').value !== '') request.max_tokens = Number(byId('max-tokens').value);
  const conversation = messages;
  answering = new AbortController();
  byId('send').disabled = true;
  byId('stop').disabled = false;
  say('writing');
  let words = null;
  let text = '';
  try {
    const reply = await ask('v1/chat/completions', {method: 'POST', signal: answering.signal, body: JSON.stringify(request),
                                                    headers: {'Content-Type': 'application/json'}});
    words = show('assistant', '');
    for await (const piece of piecesOf(reply)) {
      text += piece;
      words.textContent = text;
      byId('said').scrollTop = byId('said').scrollHeight;
    }
    say('');
  } catch (error) {
    say(error.name === 'AbortError' ? 'stopped' : error.message, error.name !== 'AbortError');
  }
  if (conversation === messages && words !== null) {
    messages.push({role: 'assistant', content: text});
  } else if (conversation === messages) {  // without any answer the message is taken back, to be sent again
    byId('words').value = messages.pop().content;
    byId('said').lastElementChild?.remove();
  }
  answering = null;
  byId('send').disabled = false;
  byId('stop').disabled = true;
  byId('words').focus();
}

byId('say').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = byId('words').value;
  if (answering !== null || text.trim() === '') return;
  byId('words').value = '';
  messages.push({role: 'user', content: text});
  show('user', text);
  answer();
});
byId('words').addEventListener('keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  byId('say').requestSubmit();
});
byId('stop').addEventListener('click', () => answering?.abort());
byId('again').addEventListener('click', () => {
  answering?.abort();
  messages = [];
  byId('said').replaceChildren();
  byId('words').focus();
});
byId('key').addEventListener('change', findModel);
startTheme();
findModel();
