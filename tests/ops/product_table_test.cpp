// The table of dense products' algorithms, as text and as choices.
#include "ops/products/product_table.h"

#include <gtest/gtest.h>

#include "base/files.h"
#include "ops/products/products.h"
#include "support/errors.h"

namespace nmoe::test {
namespace {

// Of a weight's gradient, whose sums over rows may be split.
ProductChoice choice(int64_t rows, int32_t id = 66) {
  return {.device = "NVIDIA H200",
          .library = 130100,
          .problem = {.rows = rows,
                      .cols = 768,
                      .depth = 384,
                      .input = DType::kBF16,
                      .output = DType::kBF16,
                      .transpose_a = true,
                      .align_a = 256,
                      .align_b = 256,
                      .align_d = 64,
                      .workspace_bytes = 1 << 25},
          .algorithm = {.id = id,
                        .tile = 20,
                        .stages = 31,
                        .split_k = 2,
                        .reduction = 2,
                        .swizzle = 1,
                        .custom = 5,
                        .inner_shape = 3,
                        .cluster_shape = 4},
          .gain = 0.0418};
}

// A line of a table, in which `from` is replaced.
std::string line_with(const std::string& from, const std::string& to) {
  std::string line = print_product_table({choice(512)});
  const size_t place = line.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return line.replace(place, from.size(), to);
}

TEST(ProductTable, IsWhatWasWritten) {
  ProductChoice stack = choice(64);
  stack.problem.batch = 12;
  stack.problem.input = stack.problem.output = DType::kF32;
  stack.problem.transpose_b = stack.problem.tf32 = stack.problem.device_scales = true;
  const ProductTable read = parse_product_table(print_product_table({choice(512), stack}), "table");
  ASSERT_EQ(read.size(), 2U);
  const ProductChoice* expected[] = {&read[0], &read[1]};
  if (read[0].problem.batch > 0) std::swap(expected[0], expected[1]);
  for (const auto& [found, written] : {std::pair{expected[0], choice(512)}, std::pair{expected[1], stack}}) {
    EXPECT_EQ(found->device, written.device);
    EXPECT_EQ(found->library, written.library);
    EXPECT_EQ(found->problem, written.problem);
    EXPECT_EQ(found->algorithm, written.algorithm);
    EXPECT_DOUBLE_EQ(found->gain, written.gain);
  }
  EXPECT_TRUE(parse_product_table("", "table").empty());
  EXPECT_TRUE(parse_product_table("# nothing\n\n  \n# at all", "table").empty());
}

TEST(ProductTable, NamesPlaceAndRemedyOfALineThatIsNoChoice) {
  const std::pair<std::string, const char*> lines[] = {
      {"rows", "parse error"},
      {"[]", "array is not an object"},
      {line_with("\"rows\":512,", ""), "it has no \"rows\""},
      {line_with("\"rows\":512", "\"rows\":0"), "\"rows\" is 0"},
      {line_with("\"rows\":512", "\"rows\":1.5"), "1.5 is not a whole number"},
      {line_with("\"rows\":512", "\"rows\":\"512\""), "string is not a whole number"},
      {line_with("\"rows\":512", "\"rows\":512,\"row\":1"), "\"row\" is not a field"},
      {line_with("\"a\"", "\"c\""), "\"transposed\" is \"c\""},
      {line_with("\"a\"", "\"b\""), "algorithm 66 with sums in 2 parts adds up a forward product in another order"},
      {line_with("\"BF16\"", "\"F16\""), "\"input\" is \"F16\""},
      {line_with("[256,256,64]", "[256,256]"), "\"align\""},
      {line_with("[256,256,64]", "[256,256,48]"), "\"align\""},
      {line_with("\"reduction\":2", "\"reduction\":1"), "do not give the same bits"},
      {line_with("\"split_k\":2", "\"split_k\":0"), "\"split_k\" is 0"},
      {line_with("\"stages\":31,", ""), "it has no \"stages\""},
      {line_with("\"cluster_shape\":4", "\"cluster_shape\":65536"), "\"cluster_shape\" is 65536"},
      {line_with("\"gain\":0.0418", "\"gain\":\"much\""), "\"gain\" is not a number"},
      {line_with("\"NVIDIA H200\"", "5"), "\"device\" is not text"},
  };
  for (const auto& [line, why] : lines) {
    SCOPED_TRACE(line);
    const std::string text = "# a comment\n" + print_product_table({choice(8)}) + line;
    const auto line_number = std::ranges::count(text, '\n') + (text.ends_with('\n') ? 0 : 1);
    const Error error = error_of([&] { parse_product_table(text, "some/table.jsonl"); });
    EXPECT_TRUE(contains(error.what(), fmt::format("some/table.jsonl:{}: ", line_number))) << error.what();
    EXPECT_TRUE(contains(error.what(), why)) << error.what();
    EXPECT_TRUE(contains(error.remedy(), "n bench tune"));
    EXPECT_EQ(error.exit_code(), 1);
  }
}

// Those that generation computes, too.
TEST(ProductTable, ForwardProductsHaveAlgorithmsThatMayKeepTheirOrder) {
  ProductChoice forward = choice(8);
  forward.problem.transpose_a = false;
  forward.problem.transpose_b = true;
  EXPECT_TRUE(is_forward(forward.problem));
  EXPECT_FALSE(is_forward(choice(8).problem));
  const auto read = [&](int32_t id, int32_t split_k, uint32_t reduction, DType input) {
    forward.algorithm.id = id, forward.algorithm.split_k = split_k, forward.algorithm.reduction = reduction;
    forward.problem.input = input;
    return parse_product_table(print_product_table({forward}), "table").size();
  };
  EXPECT_EQ(read(66, 1, 0, DType::kBF16), 1U);
  for (const auto& [id, split_k, reduction] : {std::tuple{16, 1, 0U}, {66, 2, 2U}, {66, 1, 2U}}) {
    const Error error = error_of([&] { read(id, split_k, reduction, DType::kBF16); });
    EXPECT_TRUE(contains(error.what(), "table:2: ") && contains(error.what(), "another order than generation"))
        << error.what();
    EXPECT_EQ(read(id, split_k, reduction, DType::kF32), 1U);  // generation has an order of its own there
  }
}

TEST(ProductTable, HasOneChoiceForAProduct) {
  const std::string first = print_product_table({choice(8, 66)}), second = print_product_table({choice(8, 67)});
  const Error error = error_of([&] { parse_product_table(first + second, "table"); });
  EXPECT_TRUE(contains(error.what(), "table:4: ")) << error.what();
  EXPECT_TRUE(contains(error.what(), "line 2 has a choice for the same product")) << error.what();
  ProductChoice elsewhere = choice(8, 67);
  elsewhere.library = 130200;
  EXPECT_EQ(parse_product_table(first + print_product_table({elsewhere}), "table").size(), 2U);
}

TEST(ProductTable, IsForOneDeviceAndVersion) {
  ProductTable table = {choice(8), choice(16), choice(16), choice(16)};
  table[2].device = "NVIDIA H100";
  table[3].library = 130200;
  EXPECT_EQ(choices_for(table, "NVIDIA H200", 130100).size(), 2U);
  EXPECT_EQ(choices_for(table, "NVIDIA H100", 130100).size(), 1U);
  EXPECT_EQ(choices_for(table, "NVIDIA H200", 130200).size(), 1U);
  EXPECT_TRUE(choices_for(table, "NVIDIA H100", 130200).empty());
  EXPECT_TRUE(choices_for(table, "NVIDIA H200 NVL", 130100).empty());
}

TEST(ProductTable, DigestIsOfChoicesAlone) {
  const auto digest = [](const ProductTable& table) { return digest_of(choices_for(table, "NVIDIA H200", 130100)); };
  ProductTable table = {choice(8), choice(16)};
  const std::string before = digest(table);
  EXPECT_EQ(before.size(), 12U);
  std::swap(table[0], table[1]);
  table[0].gain = 0.5;
  table.push_back(choice(8));
  table[2].device = "NVIDIA H100";
  EXPECT_EQ(digest(table), before);
  EXPECT_NE(digest({choice(8)}), before);
  table[0].algorithm.custom = 6;
  EXPECT_NE(digest(table), before);
}

TEST(ProductTable, TuningReplacesWhatWasTimed) {
  const auto tuned = [](int64_t rows, int num_candidates, std::optional<int32_t> id) {
    TunedProduct product{.use = {.problem = choice(rows).problem}, .num_candidates = num_candidates};
    if (id) product.choice = choice(rows, *id);
    return product;
  };
  ProductTable before = {choice(8), choice(16), choice(32), choice(64)};
  before[3].device = "NVIDIA H100";
  const ProductTuning tuning{
      .device = "NVIDIA H200",
      .library = 130100,
      // A better one, none that is better any more, one that was not timed, another device's, and a new one.
      .products = {tuned(8, 9, 70), tuned(16, 9, {}), tuned(32, 0, {}), tuned(64, 9, {}), tuned(128, 9, 71)}};
  const ProductTable after = merge_choices(before, tuning);
  std::map<int64_t, int32_t> ids;
  for (const ProductChoice& kept : after) ids[kept.problem.rows] = kept.algorithm.id;
  EXPECT_EQ(ids, (std::map<int64_t, int32_t>{{8, 70}, {32, 66}, {64, 66}, {128, 71}}));
}

TEST(ProductTable, UsesAreCountedFromAMomentOn) {
  const auto use = [](int64_t rows, int64_t plain, int64_t added) {
    return ProductUse{.problem = choice(rows).problem, .plain = plain, .added = added};
  };
  const auto since = products_since({use(8, 1, 2), use(16, 3, 0)}, {use(8, 2, 4), use(16, 3, 0), use(32, 0, 5)});
  ASSERT_EQ(since.size(), 2U);
  EXPECT_EQ(since[0].problem.rows, 8);
  EXPECT_EQ(since[0].plain, 1);
  EXPECT_EQ(since[0].added, 2);
  EXPECT_EQ(since[1].problem.rows, 32);
  EXPECT_EQ(since[1].calls(), 5);
}

// As the command would write it, so that its next lines are the only change.
TEST(ProductTable, TheProgramsOwnIsInOrder) {
  const std::string text = read_file(NMOE_PRODUCT_TABLE);
  EXPECT_EQ(print_product_table(parse_product_table(text, NMOE_PRODUCT_TABLE)), text);
  EXPECT_EQ(print_product_table(product_table()), text);
}

}  // namespace
}  // namespace nmoe::test
