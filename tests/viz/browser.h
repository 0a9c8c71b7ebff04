// A browser without a window, driven by the W3C's WebDriver protocol: Debian's chromium and chromium-driver.
#pragma once

#include <gtest/gtest.h>
#include <httplib.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "support/free_port.h"
#include "support/program.h"

namespace nmoe::test {

using nlohmann::json;

inline constexpr const char* kBrowserDriver = "/usr/bin/chromedriver";
inline constexpr const char* kBrowser = "/usr/bin/chromium";
inline bool has_browser() { return fs::exists(kBrowserDriver) && fs::exists(kBrowser); }

class Browser {
 public:
  explicit Browser(const fs::path& dir) : port_(free_port()) {
    driver_ = std::make_unique<Program>(dir, std::vector<std::string>{kBrowserDriver, fmt::format("--port={}", port_)});
    NMOE_CHECK(becomes([&] { return static_cast<bool>(client().Get("/status")); }), "{}", driver_->errors());
    const json options = {{"binary", kBrowser},
                          {"args",
                           {"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                            "--force-prefers-reduced-motion", "--window-size=1400,1000",
                            "--user-data-dir=" + (dir / "profile").string()}}};
    const json session = call("", {{"capabilities",
                                    {{"alwaysMatch",
                                      {{"browserName", "chrome"},
                                       {"goog:chromeOptions", options},
                                       {"goog:loggingPrefs", {{"browser", "ALL"}, {"performance", "ALL"}}}}}}}});
    session_ = "/" + session["sessionId"].get<std::string>();
  }
  ~Browser() { client().Delete(("/session" + session_).c_str()); }
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // In a tab of its own, which is then the one that all else is about.
  void open_tab(const std::string& url) {
    call("/window", {{"handle", call("/window/new", {{"type", "tab"}})["handle"]}});
    open(url);
  }
  void open(const std::string& url) { call("/url", {{"url", url}}); }
  // What a function with this body returns.
  json run(const std::string& script) { return call("/execute/sync", {{"script", script}, {"args", json::array()}}); }
  // The same of one that calls its last argument with what it finds.
  json run_async(const std::string& script) {
    return call("/execute/async", {{"script", script}, {"args", json::array()}});
  }
  // Whether the expression becomes true within ten seconds.
  bool becomes_true(const std::string& expression) {
    return becomes([&] { return run("return Boolean(" + expression + ")") == true; });
  }
  void click(const std::string& selector) {
    run("document.querySelector(" + json(selector).dump() + ").click(); return 0");
  }
  void type(const std::string& selector, const std::string& text) {
    const json element = call("/element", {{"using", "css selector"}, {"value", selector}});
    if (element.is_object() && !element.empty()) {
      call("/element/" + element.begin()->get<std::string>() + "/value", {{"text", text}});
    }
  }
  // The mouse goes from one place of the page to another; pressed all the way where `drag`.
  void move(double from_x, double from_y, double to_x, double to_y, bool drag) {
    const auto to = [](double x, double y, int ms) {
      return json{{"type", "pointerMove"}, {"duration", ms}, {"x", int(x)}, {"y", int(y)}, {"origin", "viewport"}};
    };
    json steps = {to(from_x, from_y, 0)};
    if (drag) steps.push_back({{"type", "pointerDown"}, {"button", 0}});
    steps.push_back(to((from_x + to_x) / 2, (from_y + to_y) / 2, 60));
    steps.push_back(to(to_x, to_y, 60));
    if (drag) steps.push_back({{"type", "pointerUp"}, {"button", 0}});
    call("/actions",
         {{"actions",
           {{{"type", "pointer"}, {"id", "mouse"}, {"parameters", {{"pointerType", "mouse"}}}, {"actions", steps}}}}});
  }
  // A command of Chromium's own.
  json devtools(const std::string& command, const json& parameters) {
    return call("/goog/cdp/execute", {{"cmd", command}, {"params", parameters}});
  }
  // What has been logged since the last call: "browser" or "performance".
  json log(const std::string& type) { return call("/se/log", {{"type", type}}); }
  std::vector<std::string> console_errors() {
    std::vector<std::string> errors;
    for (const json& entry : log("browser")) {
      if (entry["level"] == "SEVERE") errors.push_back(entry["message"]);
    }
    return errors;
  }
  // What pages have asked for that does not begin with `own`.
  std::vector<std::string> foreign_requests(const std::string& own) {
    std::vector<std::string> urls;
    for (const json& entry : log("performance")) {
      const json message = json::parse(entry["message"].get<std::string>(), nullptr, false)["message"];
      if (message["method"] != "Network.requestWillBeSent") continue;
      const std::string url = message["params"]["request"]["url"];
      const bool of_browser = url.starts_with("chrome:");  // the tab that it begins with
      if (!url.starts_with(own) && !url.starts_with("data:") && !of_browser) urls.push_back(url);
    }
    return urls;
  }
  // What axe-core (scripts/setup.sh --browser) finds hard to use without eyes or a mouse; nothing where it is not
  // there.
  json violations(const fs::path& axe) {
    if (!fs::exists(axe)) return json::array();
    if (run("return typeof axe") == "undefined") run(read_file(axe) + "; window.axe = axe; return 0;");
    return run_async(
        "const done = arguments[arguments.length - 1];"
        "axe.run().then((result) => done(result.violations.map((v) => v.id + ': ' + v.help + ' ' + "
        "v.nodes.slice(0, 3).map((n) => n.html + ' ' + n.failureSummary).join(' | '))), (e) => done([String(e)]));");
  }
  // Where $NMOE_SCREENSHOTS names a folder: there, as base64.
  void keep_screenshot(const std::string& name) {
    const char* const folder = std::getenv("NMOE_SCREENSHOTS");
    if (folder == nullptr) return;
    const httplib::Result result = client().Get(("/session" + session_ + "/screenshot").c_str());
    if (!result) return;
    const std::string image = json::parse(result->body, nullptr, false)["value"];
    write_file_atomically(fs::path(folder) / (name + ".png.base64"), image);
  }

  template <class Condition>
  static bool becomes(Condition condition) {
    for (int i = 0; i < 200; ++i) {
      if (condition()) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return condition();
  }

 private:
  httplib::Client client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(60);
    return client;
  }
  json call(const std::string& path, const json& body) {
    const httplib::Result result =
        client().Post(("/session" + session_ + path).c_str(), body.dump(), "application/json");
    const json reply = result ? json::parse(result->body, nullptr, false) : json();
    if (!result || result->status != 200) {
      ADD_FAILURE() << path << ": " << (result ? result->body.substr(0, 2000) : httplib::to_string(result.error()));
      return nullptr;
    }
    return reply["value"];
  }

  int port_;
  std::unique_ptr<Program> driver_;
  std::string session_;
};

}  // namespace nmoe::test
