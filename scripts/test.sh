#!/usr/bin/env bash
# Builds and runs every test.
#
#   scripts/test.sh                    all tests but those labelled slow
#   scripts/test.sh --all              slow ones too
#   scripts/test.sh --asan [FOLDER...] the tests that suit it, under AddressSanitizer and UndefinedBehaviorSanitizer; only
#                                      those of these folders of tests/, if any is named
#   scripts/test.sh --tsan [FOLDER...] the tests that suit it, under ThreadSanitizer

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  printf 'usage: scripts/test.sh [--all | --asan [FOLDER...] | --tsan [FOLDER...]]\n' >&2
  exit 2
}

# Sanitizers are for our own memory and threads: programs that mostly run other people's code gain nothing.
preset=cpu
programs=()
labels=(--label-exclude '^(slow|gpu)$')
case ${1:-} in
  '') ;;
  --all) labels=(--label-exclude '^gpu$') ;;
  --asan)
    preset=asan
    programs=(base_test tensor_test config_test data_test ops_test rdep_test checkpoint_test model_test optim_test infer_test)
    programs+=(train_test)
    # Without large vocabularies, measures of time, definitions that are summed over and over, rows that DuckDB reads, the
    # self test, and whole runs of the trainer but those that resume, alert, fail and have several ranks: minutes of the
    # same code that other tests run.
    export GTEST_FILTER='-*HuggingFaceVectors*:*TiktokenVectors*:*EveryCodePoint*:*Parquet*:*Quadratic*:*LongTextsAverage*'
    GTEST_FILTER+=':*DirectionalDifferences*:*IsTheDefinition*:*IsTheSoftmax*:SelfTest.*:*ThatHangs*:*NumberOfRanks*:*OneRank*'
    GTEST_FILTER+=':TrainerTest.*:PrecisionTest.*:RowCodesTest.*:FallbackTest.*:MovingExpertsTest.*:SampleTextsTest.ChangeNothing*'
    ;;
  --tsan)
    preset=tsan programs=(base_test ops_test parallel_test rdep_test checkpoint_test track_test)
    # Without what computes for long on one thread.
    export GTEST_FILTER='-*Differences*:*ManyEmptyTensors*:*AgreesWithDouble*:*IsItsDefinition*:*IsTheDefinition*:*EveryByteOf*:*EveryTensorIs*'
    ;;
  *) usage ;;
esac
shift $(($# > 0))
if (($# > 0)); then
  ((${#programs[@]} > 0)) || usage
  suitable=" ${programs[*]} " programs=()
  for folder in "$@"; do
    [[ -d tests/$folder ]] || { printf 'test.sh: error: there is no folder tests/%s\n' "$folder" >&2; exit 2; }
    if [[ $suitable == *" ${folder}_test "* ]]; then programs+=("${folder}_test"); fi
  done
  if ((${#programs[@]} == 0)); then
    printf 'none of these folders has tests that suit the preset %s: %s\n' "$preset" "$*"
    exit
  fi
fi

scripts/setup.sh --test
# A folder that nobody has configured is compiled from nothing, with files united.
options=(-DNMOE_BUILD_TESTS=ON)
[[ -f build/$preset/build.ninja ]] || options+=(-DNMOE_UNITE=ON)
cmake --preset "$preset" "${options[@]}"
cmake --build --preset "$preset" ${programs[@]:+--target "${programs[@]}"}
# Three at once on 2 cores: many tests wait for something.
ctest --preset "$preset" --parallel 3 "${labels[@]}" ${programs[@]:+--tests-regex "^($(IFS='|'; echo "${programs[*]}"))(/[0-9]+)?$"}
