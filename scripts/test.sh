#!/usr/bin/env bash
# Builds and runs every test.
#
#   scripts/test.sh           all tests but those labelled slow
#   scripts/test.sh --all     slow ones too
#   scripts/test.sh --asan    the tests that suit it, under AddressSanitizer and UndefinedBehaviorSanitizer
#   scripts/test.sh --tsan    the tests that suit it, under ThreadSanitizer

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Sanitizers are for our own memory and threads: programs that mostly run other people's code gain nothing.
preset=cpu
programs=()
labels=(--label-exclude '^(slow|gpu)$')
case ${1:-} in
  '') ;;
  --all) labels=(--label-exclude '^gpu$') ;;
  --asan)
    preset=asan programs=(base_test tensor_test ops_test config_test data_test checkpoint_test train_test)
    # Without large vocabularies, measures of time, definitions that are summed over and over, rows that DuckDB reads, the
    # self test, and whole runs of the trainer but those that resume, alert, fail and have several ranks: minutes of the
    # same code that other tests run.
    export GTEST_FILTER='-*HuggingFaceVectors*:*TiktokenVectors*:*EveryCodePoint*:*Parquet*:*Quadratic*:*LongTextsAverage*'
    GTEST_FILTER+=':*DirectionalDifferences*:*IsTheDefinition*:*IsTheSoftmax*:SelfTest.*:*ThatHangs*:*NumberOfRanks*:*OneRank*'
    GTEST_FILTER+=':TrainerTest.*:PrecisionTest.*:RowCodesTest.*:FallbackTest.*:MovingExpertsTest.*:SampleTextsTest.ChangeNothing*'
    ;;
  --tsan)
    preset=tsan programs=(base_test ops_test parallel_test checkpoint_test track_test)
    # Without what computes for long on one thread.
    export GTEST_FILTER='-*Differences*:*AgreesWithDouble*:*IsItsDefinition*:*IsTheDefinition*:*EveryByteOf*:*EveryTensorIs*'
    ;;
  *) printf 'usage: scripts/test.sh [--all | --asan | --tsan]\n' >&2; exit 2 ;;
esac

scripts/setup.sh --test
cmake --preset "$preset" -DNMOE_BUILD_TESTS=ON
cmake --build --preset "$preset" ${programs[@]:+--target "${programs[@]}"}
# Three at once on 2 cores: many tests wait for something.
ctest --preset "$preset" --parallel 3 "${labels[@]}" ${programs[@]:+--tests-regex "^($(IFS='|'; echo "${programs[*]}"))(/[0-9]+)?$"}
