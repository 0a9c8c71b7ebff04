#!/usr/bin/env node
// Writes tests/data/fixtures/tokenizers/splits.json: what Hugging Face's tokenizers make of Split, for
// tests/data/split_vectors_test.cpp.
//
//   npm install --no-save tokenizers@0.23.2
//   node scripts/split_vectors.mjs tests/data/fixtures/tokenizers/splits.json
//
// "splits"   patterns with a behavior, texts, and the pieces of each text: chosen ones, and many put together at random
// "classes"  patterns that match one character; how many code points they match, and the start of the SHA-256 of
//            those, in hex, as little-endian uint32
// "refused"  patterns that the library refuses itself
//
// The same version of the package gives the same file.

import { createHash } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const { Tokenizer } = createRequire(path.join(process.cwd(), 'package.json'))('tokenizers');

function splitter(pattern, behavior, invert) {
  const file = {
    version: '1.0',
    added_tokens: [],
    pre_tokenizer: { type: 'Split', pattern: { Regex: pattern }, behavior, invert },
    model: { type: 'WordLevel', vocab: { a: 0 }, unk_token: 'a' },
  };
  return Tokenizer.fromString(JSON.stringify(file)).getPreTokenizer();
}
const pieces = (split, text) => split.preTokenizeString(text).map(([piece]) => piece);

// ---- chosen splits ----

const behaviors = ['Removed', 'Isolated', 'MergedWithPrevious', 'MergedWithNext', 'Contiguous'];
const thousands = String.raw`(?=(\d{3})+(?!\d))`;
const chosen = [
  [thousands, ['1234567', '123456', '1', '12 1234 12345.678', '']],
  [String.raw`(?=b)|c`, ['abcbccabb', 'c', 'b', '']],
  [String.raw`\d|(?=c)`, ['1abc', '1c', 'c1']],
  ['-', ['the-final--countdown', '-', '--a-']],
  ['', ['abc', '東é']],
  ['x*', ['axxb', 'xx', 'ab']],
  [String.raw`\b`, ['one two', '1\uFE0F\u20E3 हिन्दी', 'a½b', "don't_do"]],
  [String.raw`\B`, ['one two', '1\uFE0F\u20E3 हिन्दी', 'a½b']],
  [String.raw`\w+`, ['1\uFE0F\u20E3 हिन्दी', 'a½b ²x', 'e\u0301t\u00E9 x_y‿z']],
  [String.raw`\W+`, ['1\uFE0F\u20E3 हिन्दी', 'a½b ²x', 'e\u0301t\u00E9 x_y‿z']],
  [String.raw`[\w]+`, ['a½b ²x', 'हिन्दी']],
  [String.raw`[[:alpha:]]+`, ['हिन्दी 12', 'aⅧⓐ½b']],
  [String.raw`[^[:alnum:]]+`, ['हिन्दी, 12', 'a-b']],
  [String.raw`[[:^punct:]]+`, ['a$+b!_-«x»']],
  [String.raw`[\p{Lu}&&[^\p{Han}A]]+`, ['ABC東É']],
  [String.raw`x(?i)a|b`, ['xA xB b B']],
  [String.raw`a{,2}`, ['aaaaa']],
  [String.raw`\v`, ['a\vb\nc']],
  [String.raw`\h+`, ['xyzab09 F']],
  [String.raw`\p{Han}+`, ['、漢字a']],
];

// ---- random ones ----

let state = 20260101;
function random(below) {
  state = (state + 0x6d2b79f5) | 0;
  let t = Math.imul(state ^ (state >>> 15), 1 | state);
  t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
  return ((t ^ (t >>> 14)) >>> 0) % below;
}
const pick = (list) => list[random(list.length)];

const characters = ['a', 'b', 'A', 's', 'S', 'K', 'k', 'ſ', '\u212A', 'é', 'É', '1', '2', '3', '٣', '½', 'Ⅷ', 'हि', 'न्दी',
  '\u0301', '\uFE0F', '\u20E3', '_', '-', '‿', "'", '$', '+', '!', '。', ' ', '\n', '\r', '\t', '\u00A0', '\u0085', '東',
  'ア', '、', '😀', 'ª', 'ⓐ', '\u200D', 'z', 'x'];
const atoms = ['a', 'b', String.raw`\w`, String.raw`\W`, String.raw`\d`, String.raw`\D`, String.raw`\s`, String.raw`\S`,
  String.raw`\h`, String.raw`\b`, String.raw`\B`, '.', '^', '$', String.raw`\A`, String.raw`\z`, String.raw`\Z`,
  String.raw`\R`, String.raw`\N`, String.raw`\O`, String.raw`\p{L}`, String.raw`\P{L}`, String.raw`\p{^Ll}`,
  String.raw`\p{M}`, String.raw`\p{N}`, String.raw`\p{Han}`, String.raw`\p{Alnum}`, String.raw`\p{Punct}`, '[[:alpha:]]',
  '[[:^alpha:]]', '[[:punct:]]', '[[:upper:]]', String.raw`[^\s\p{L}]`, '[a-z&&[^b]]', String.raw`[\w&&\p{N}]`,
  String.raw`[\W_]`, String.raw`[^\W\d]`, '(?=b)', '(?!a)', '(?<=a)', String.raw`(?<!\d)`, thousands, String.raw`\v`,
  String.raw`\x{301}`, String.raw`\u00e9`, '(?i:s)', '(?i:[a-k])', '(?i:[^a])', String.raw`(?i:\p{Lu})`, '(?<n>a)',
  '(?>a*)', String.raw`[\b-a]`, '(?m:.)', '[+-]', '1', '\u212A'];
const quantifiers = ['', '', '', '', '', '*', '+', '?', '*?', '+?', '??', '*+', '++', '?+', '{2}', '{1,2}', '{,2}', '{2,}',
  '{1,3}?'];

function randomPattern(depth) {
  const alternatives = [];
  for (let count = random(3) === 0 ? 1 + random(3) : 1; count > 0; --count) {
    let text = '';
    for (let items = 1 + random(3); items > 0; --items) {
      const nested = depth < 2 && random(6) === 0;
      text += nested ? `${pick(['(', '(?:', '(?>', '(?m:'])}${randomPattern(depth + 1)})` : pick(atoms);
      text += pick(quantifiers);
    }
    alternatives.push(text);
  }
  return alternatives.join('|');
}

function randomText() {
  const first = random(characters.length);
  const kinds = 1 + random(characters.length);
  let text = '';
  for (let length = random(14); length > 0; --length) text += characters[(first + random(kinds)) % characters.length];
  return text;
}

// ---- the file ----

const splits = [];
function add(pattern, behavior, invert, texts) {
  const split = splitter(pattern, behavior, invert);
  splits.push({ pattern, behavior, invert, texts, pieces: texts.map((text) => pieces(split, text)) });
}
for (const [pattern, texts] of chosen) {
  for (const behavior of behaviors) for (const invert of [false, true]) add(pattern, behavior, invert, texts);
}
while (splits.length < 700) {
  const [pattern, behavior, invert] = [randomPattern(0), pick(behaviors), random(2) === 1];
  const texts = Array.from({ length: 6 }, randomText);
  try {
    add(pattern, behavior, invert, texts);
  } catch {
    // A pattern that the library does not take, such as a quantifier behind an anchor.
  }
}

const classes = [String.raw`\w`, String.raw`\W`, String.raw`[\w]`, String.raw`\d`, String.raw`\s`, String.raw`\h`,
  ...['alnum', 'alpha', 'blank', 'cntrl', 'graph', 'lower', 'print', 'punct', 'space', 'upper', 'word', 'xdigit'].map(
    (name) => `[[:${name}:]]`),
  ...['Alphabetic', 'Punct', 'P', 'S', 'C', 'Cn', 'Nd', 'Lu', 'M', 'Han', 'Latin', 'Hiragana', 'Common', 'Unknown'].map(
    (name) => `\\p{${name}}`)].map(
  (pattern) => {
    const split = splitter(pattern, 'Removed', true);
    const found = [];
    for (let begin = 0; begin < 0x110000; begin += 1024) {
      let text = '';
      for (let c = begin; c < begin + 1024; ++c) if (c < 0xd800 || c > 0xdfff) text += String.fromCodePoint(c);
      for (const piece of pieces(split, text)) for (const c of piece) found.push(c.codePointAt(0));
    }
    const bytes = Buffer.from(Uint32Array.from(found).buffer);
    return { pattern, count: found.length, sha256: createHash('sha256').update(bytes).digest('hex').slice(0, 16) };
  },
);

const refused = ['(?s).', String.raw`[\w-.]`, String.raw`[a-\d]`, '{,3}', '(?=a)*', '^*', '[[:foo:]]', String.raw`\p{IsHan}`,
  '(', ')', '[a', '*'].filter((pattern) => {
  try {
    splitter(pattern, 'Isolated', false);
    return false;
  } catch {
    return true;
  }
});

writeFileSync(process.argv[2], `{"tokenizers":"0.23.2",\n"refused":${JSON.stringify(refused)},\n"classes":[\n${classes
  .map((entry) => JSON.stringify(entry)).join(',\n')}],\n"splits":[\n${splits
  .map((entry) => JSON.stringify(entry)).join(',\n')}]}\n`);
