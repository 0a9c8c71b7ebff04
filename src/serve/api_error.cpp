#include "serve/api_error.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"

namespace nmoe {
namespace {

const char* error_type(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

ApiError::ApiError(int status, const std::string& message, std::string param, std::string code)
    : std::runtime_error(message), status_(status), param_(std::move(param)), code_(std::move(code)) {}

std::string ApiError::json() const {
  using nlohmann::ordered_json;
  const auto or_null = [](const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); };
  ordered_json error;
  error["message"] = what();
  error["type"] = error_type(status_);
  error["param"] = or_null(param_);
  error["code"] = or_null(code_);
  return json_text(ordered_json{{"error", std::move(error)}});
}

}  // namespace nmoe
