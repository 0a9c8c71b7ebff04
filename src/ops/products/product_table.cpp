#include "ops/products/product_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "base/error.h"
#include "base/json.h"
#include "base/sha256.h"
#include "ops/products/product_table_text.h"

namespace nmoe {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint32_t kNoReduction = 0, kReductionInOrder = 2;
constexpr int32_t kOtherOrder = 16;  // the id of cuBLASLt 13.1's algorithm whose sums are in an order of its own

constexpr const char* kHeader =
    "# Algorithms of dense products that are faster than cuBLASLt's own first choices: `n bench tune` writes them, "
    "product_table.h has the fields.\n";

// The members of an object, each of which must be asked for.
class Members {
 public:
  explicit Members(const Json& json) : json_(json) {
    if (!json.is_object()) throw JsonError(fmt::format("{} is not an object", json.type_name()));
  }

  const Json* find(const char* key) {
    asked_.insert(key);
    const auto member = json_.find(key);
    return member == json_.end() ? nullptr : &*member;
  }
  const Json& at(const char* key) {
    const Json* member = find(key);
    if (member == nullptr) throw JsonError(fmt::format("it has no \"{}\"", key));
    return *member;
  }
  template <class Integer>
  void read(const char* key, Integer& number, int64_t least, int64_t most) {
    const auto value = integer_of<int64_t>(at(key));
    if (value < least || value > most) {
      throw JsonError(fmt::format("\"{}\" is {}, not {} to {}", key, value, least, most));
    }
    number = static_cast<Integer>(value);
  }
  std::string text(const char* key) {
    const Json& member = at(key);
    if (!member.is_string()) throw JsonError(fmt::format("\"{}\" is not text", key));
    return member.get<std::string>();
  }
  bool flag(const char* key) {
    const Json* member = find(key);
    if (member != nullptr && !member->is_boolean()) throw JsonError(fmt::format("\"{}\" is not true or false", key));
    return member != nullptr && member->get<bool>();
  }
  void require_no_others() const {
    for (const auto& [key, value] : json_.items()) {
      if (!asked_.contains(key)) throw JsonError(fmt::format("\"{}\" is not a field of it", key));
    }
  }

 private:
  const Json& json_;
  std::set<std::string> asked_;
};

DType read_dtype(Members& members, const char* key) {
  const std::string name = members.text(key);
  const auto dtype = dtype_from_name(name);
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    throw JsonError(fmt::format("\"{}\" is \"{}\", not F32 or BF16", key, name));
  }
  return *dtype;
}

void read_alignments(Members& members, GemmProblem& problem) {
  const auto align = integers_of<uint32_t>(members.at("align"));
  const auto is_alignment = [](uint32_t bytes) { return bytes >= 1 && bytes <= 256 && (bytes & (bytes - 1)) == 0; };
  if (align.size() != 3 || !std::ranges::all_of(align, is_alignment)) {
    throw JsonError("\"align\" is not a list of three powers of two up to 256");
  }
  problem.align_a = align[0];
  problem.align_b = align[1];
  problem.align_d = align[2];
}

ProductAlgorithm read_algorithm(const Json& json) {
  Members members(json);
  ProductAlgorithm algorithm;
  members.read("id", algorithm.id, 0, INT32_MAX);
  members.read("tile", algorithm.tile, 0, UINT32_MAX);
  members.read("stages", algorithm.stages, 0, UINT32_MAX);
  members.read("split_k", algorithm.split_k, 1, INT32_MAX);
  members.read("reduction", algorithm.reduction, 0, UINT32_MAX);
  members.read("swizzle", algorithm.swizzle, 0, UINT32_MAX);
  members.read("custom", algorithm.custom, 0, UINT32_MAX);
  members.read("inner_shape", algorithm.inner_shape, 0, UINT16_MAX);
  members.read("cluster_shape", algorithm.cluster_shape, 0, UINT16_MAX);
  members.require_no_others();
  if (!is_deterministic(algorithm)) {
    throw JsonError(
        fmt::format("\"reduction\" is {}: parts of a sum that meet in that way do not give the same bits every time, "
                    "as {} and {} do",
                    algorithm.reduction, kNoReduction, kReductionInOrder));
  }
  return algorithm;
}

ProductChoice read_choice(std::string_view line) {
  constexpr int kMostValues = 64;
  const auto json = parse_json<Json>(line, kMostValues);
  Members members(json);
  ProductChoice choice;
  choice.device = members.text("device");
  members.read("cublaslt", choice.library, 1, INT32_MAX);
  GemmProblem& problem = choice.problem;
  if (members.find("batch") != nullptr) members.read("batch", problem.batch, 0, INT32_MAX);
  members.read("rows", problem.rows, 1, INT64_MAX);
  members.read("cols", problem.cols, 1, INT64_MAX);
  members.read("depth", problem.depth, 1, INT64_MAX);
  const std::string transposed = members.text("transposed");
  if (transposed != "" && transposed != "a" && transposed != "b" && transposed != "ab") {
    throw JsonError(fmt::format(R"("transposed" is "{}", not "", "a", "b" or "ab")", transposed));
  }
  problem.transpose_a = transposed.starts_with('a');
  problem.transpose_b = transposed.ends_with('b');
  problem.input = read_dtype(members, "input");
  problem.output = read_dtype(members, "output");
  problem.tf32 = members.flag("tf32");
  problem.device_scales = members.flag("device_scales");
  read_alignments(members, problem);
  members.read("workspace", problem.workspace_bytes, 0, INT64_MAX);
  choice.algorithm = read_algorithm(members.at("algorithm"));
  if (is_forward(problem) && !may_keep_order(choice.algorithm)) {
    throw JsonError(
        fmt::format("algorithm {} with sums in {} parts adds up a forward product in another order than generation",
                    choice.algorithm.id, choice.algorithm.split_k));
  }
  const Json& gain = members.at("gain");
  if (!gain.is_number()) throw JsonError("\"gain\" is not a number");
  choice.gain = gain.get<double>();
  members.require_no_others();
  return choice;
}

Json to_json(const ProductAlgorithm& algorithm) {
  return {{"id", algorithm.id},
          {"tile", algorithm.tile},
          {"stages", algorithm.stages},
          {"split_k", algorithm.split_k},
          {"reduction", algorithm.reduction},
          {"swizzle", algorithm.swizzle},
          {"custom", algorithm.custom},
          {"inner_shape", algorithm.inner_shape},
          {"cluster_shape", algorithm.cluster_shape}};
}

// Fields of a product, behind those of where it runs.
void put(Json& json, const GemmProblem& problem) {
  if (problem.batch > 0) json["batch"] = problem.batch;
  json["rows"] = problem.rows;
  json["cols"] = problem.cols;
  json["depth"] = problem.depth;
  json["transposed"] = std::string(problem.transpose_a ? "a" : "") + (problem.transpose_b ? "b" : "");
  json["input"] = dtype_name(problem.input);
  json["output"] = dtype_name(problem.output);
  if (problem.tf32) json["tf32"] = true;
  if (problem.device_scales) json["device_scales"] = true;
  json["align"] = {problem.align_a, problem.align_b, problem.align_d};
  json["workspace"] = problem.workspace_bytes;
}

auto place_of(const ProductChoice& choice) { return std::tie(choice.device, choice.library, choice.problem); }

struct TableInUse {
  ProductTable table = parse_product_table(kProductTableText, "product_table.jsonl");
};
TableInUse& in_use() {
  static TableInUse table;
  return table;
}

}  // namespace

bool is_deterministic(const ProductAlgorithm& algorithm) {
  return algorithm.reduction == kNoReduction || algorithm.reduction == kReductionInOrder;
}

bool may_keep_order(const ProductAlgorithm& algorithm) {
  return algorithm.split_k == 1 && algorithm.reduction == kNoReduction && algorithm.id != kOtherOrder;
}

ProductTable parse_product_table(std::string_view text, std::string_view name) {
  ProductTable table;
  std::map<std::tuple<std::string, int64_t, GemmProblem>, int64_t> line_of;
  for (int64_t number = 1; !text.empty(); ++number) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos || line.starts_with('#')) continue;
    try {
      table.push_back(read_choice(line));
      const auto [known, is_new] = line_of.emplace(place_of(table.back()), number);
      if (!is_new) throw JsonError(fmt::format("line {} has a choice for the same product", known->second));
    } catch (const JsonError& error) {
      throw runtime_error(fmt::format("{}:{}: no choice of an algorithm: {}", name, number, error.what()),
                          "remove the line, or write the table anew with `n bench tune`");
    }
  }
  return table;
}

std::string print_product_table(ProductTable table) {
  std::ranges::sort(table, [](const auto& a, const auto& b) { return place_of(a) < place_of(b); });
  std::string text = kHeader;
  for (const ProductChoice& choice : table) {
    Json json = {{"device", choice.device}, {"cublaslt", choice.library}};
    put(json, choice.problem);
    json["algorithm"] = to_json(choice.algorithm);
    json["gain"] = std::round(choice.gain * 1e4) / 1e4;
    text += json.dump() + "\n";
  }
  return text;
}

ProductChoices choices_for(const ProductTable& table, std::string_view device, int64_t library) {
  ProductChoices choices;
  for (const ProductChoice& choice : table) {
    if (choice.device == device && choice.library == library) choices.emplace(choice.problem, choice.algorithm);
  }
  return choices;
}

std::string digest_of(const ProductChoices& choices) {
  std::string text;
  for (const auto& [problem, algorithm] : choices) {
    Json json = Json::object();
    put(json, problem);
    json["algorithm"] = to_json(algorithm);
    text += json.dump() + "\n";
  }
  constexpr size_t kDigits = 12;
  return sha256_hex(text).substr(0, kDigits);
}

const ProductTable& product_table() { return in_use().table; }

void set_product_table(ProductTable table) { in_use().table = std::move(table); }

}  // namespace nmoe
