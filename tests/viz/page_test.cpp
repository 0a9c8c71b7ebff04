// The page of n viz in a browser. NMOE_SCREENSHOTS=FOLDER keeps what it looks like.
#include <gtest/gtest.h>

#include <optional>

#include "support/errors.h"
#include "support/temp_dir.h"
#include "viz/browser.h"
#include "viz/recorded_runs.h"

namespace nmoe::test {
namespace {

// What is in the list behind a name; the page must not run it.
constexpr const char* kHostile = "<img src=x onerror='window.hostile=1'>";

class PageTest : public TempDirTest {
 protected:
  void SetUp() override {
    if (!has_browser()) GTEST_SKIP() << "there are no chromium and chromium-driver (scripts/setup.sh --browser)";
    one_ = record_run(run_dir_, "baseline", 2.0, R"({"run":{"seed":1},"optim":{"lr":0.001}})",
                      "2026-11-22T10:00:00Z  step 1\n2026-11-22T10:00:01Z  warning: a <b>slow</b> disk\n");
    two_ = record_run(run_dir_, kHostile, 2.5, R"({"run":{"seed":1},"optim":{"lr":0.002}})", "");
    viz_ = std::make_unique<Program>(dir_, std::vector<std::string>{NMOE_PROGRAM, "viz", "--port", "0"});
    ASSERT_TRUE(viz_->wait_for("#token=")) << viz_->errors();
    ASSERT_TRUE(Browser::becomes([&] { return viz_->errors().ends_with("\n"); }));
    const std::string said = viz_->errors();
    link_ = said.substr(said.find("http://"), said.find('\n') - said.find("http://"));
    browser_.emplace(dir_);
    browser_->open(link_);
    ASSERT_TRUE(browser_->becomes_true("document.querySelectorAll('#run-table input').length === 2"));
  }
  void TearDown() override {
    if (!browser_) return;
    EXPECT_EQ(browser_->foreign_requests(link_.substr(0, link_.find('#'))), std::vector<std::string>{});
    EXPECT_EQ(browser_->console_errors(), std::vector<std::string>{});
    EXPECT_EQ(browser_->run("return window.hostile ?? 0"), 0);
  }

  void choose(const std::string& run) { browser_->click("#run-table input[data-run='" + run + "']"); }
  void view(const std::string& name) { browser_->click("#tab-" + name); }
  // How many pixels of the first charts' curves are of a color, which is that of the run's swatch.
  bool drawn(const std::string& run) {
    return browser_->becomes_true(R"((() => {
      const row = document.querySelector("#run-table input[data-run=')" +
                                  run + R"(']")?.closest('tr');
      const [r, g, b] = getComputedStyle(row.querySelector('.swatch')).backgroundColor.match(/\d+/g).map(Number);
      const canvas = document.querySelector('.chart canvas');
      if (!canvas) return false;
      const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
      let count = 0;
      for (let i = 0; i < data.length; i += 4) {
        if (Math.abs(data[i] - r) + Math.abs(data[i + 1] - g) + Math.abs(data[i + 2] - b) < 30 && data[i + 3] > 200) ++count;
      }
      return count > 150;
    })())");
  }
  void expect_accessible(const std::string& what) { EXPECT_EQ(browser_->violations(NMOE_AXE), json::array()) << what; }
  void keep_screenshot(const std::string& name) { browser_->keep_screenshot(name); }

  const fs::path run_dir_ = dir_ / "runs";
  std::string one_, two_, link_;
  std::unique_ptr<Program> viz_;
  std::optional<Browser> browser_;
};

TEST_F(PageTest, Curves) {
  EXPECT_FALSE(contains(browser_->run("return location.href").get<std::string>(), "token"));
  EXPECT_EQ(browser_->run("return document.querySelector('#run-table img')"), nullptr) << "a name is text";
  expect_accessible("nothing chosen");
  choose(one_);
  EXPECT_TRUE(drawn(one_));
  choose(two_);
  EXPECT_TRUE(browser_->becomes_true("document.querySelectorAll('.chart').length === 6"));
  EXPECT_TRUE(drawn(one_));
  EXPECT_TRUE(drawn(two_));
  EXPECT_TRUE(
      browser_->becomes_true("document.querySelector('.chart .values').textContent.includes('baseline: 1.99')"));
  EXPECT_TRUE(browser_->becomes_true("document.querySelector('.chart .values').textContent.includes('1 not finite')"));
  expect_accessible("curves");
  keep_screenshot("curves_light");

  // The crosshair is in all charts.
  const json box = browser_->run(
      "const b = document.querySelector('.u-over').getBoundingClientRect();"
      "return [b.left, b.top, b.width, b.height]");
  const double left = box[0], top = box[1], width = box[2], height = box[3];
  browser_->move(left + width / 4, top + height / 2, left + width / 2, top + height / 2, /*drag=*/false);
  EXPECT_TRUE(
      browser_->becomes_true("[...document.querySelectorAll('.chart')].slice(0, 3).every((chart) => "
                             "chart.querySelector('.values').textContent.startsWith('at '))"));
  // A part that is dragged over becomes the window of all; the address has it, so a reload shows the same.
  browser_->move(left + width / 4, top + height / 2, left + width / 2, top + height / 2, /*drag=*/true);
  EXPECT_TRUE(browser_->becomes_true("location.hash.includes('from=')"));
  browser_->run("document.activeElement.blur(); return 0");
  browser_->type("body", "l");
  EXPECT_TRUE(browser_->becomes_true("location.hash.includes('logy=1')"));
  const std::string address = browser_->run("return location.href");
  browser_->open("about:blank");
  browser_->open(address);
  EXPECT_TRUE(browser_->becomes_true("document.querySelectorAll('.chart').length === 6"));
  EXPECT_TRUE(drawn(one_));
  EXPECT_EQ(browser_->run("return document.querySelectorAll('#run-table tr.chosen').length"), 2);
  EXPECT_EQ(browser_->run("return document.getElementById('logy').checked"), true);
  browser_->click("#reset");
  EXPECT_TRUE(browser_->becomes_true("!location.hash.includes('from=')"));

  browser_->type("body", "l");
  browser_->type("body", "s");
  browser_->type("body", "t");
  EXPECT_TRUE(browser_->becomes_true("document.documentElement.dataset.theme === 'dark'"));
  EXPECT_TRUE(drawn(one_));
  expect_accessible("dark");
  keep_screenshot("curves_dark");
  browser_->devtools("Emulation.setDeviceMetricsOverride",
                     {{"width", 390}, {"height", 844}, {"deviceScaleFactor", 2}, {"mobile", true}});
  EXPECT_TRUE(browser_->becomes_true("document.documentElement.scrollWidth <= innerWidth"))
      << "nothing is wider than a phone";
  keep_screenshot("phone_list");
  browser_->run("document.getElementById('views').scrollIntoView(); return 0");
  EXPECT_TRUE(browser_->becomes_true("document.querySelector('.chart canvas').clientWidth < 390"));
  keep_screenshot("phone_curves");
}

TEST_F(PageTest, OtherViews) {
  choose(one_);
  choose(two_);
  view("router");
  EXPECT_TRUE(browser_->becomes_true(fmt::format("document.getElementById('heat')?.width === {}", kRecordedExperts)));
  EXPECT_TRUE(
      browser_->becomes_true("document.getElementById('heat-summary').textContent.includes('1 without a token')"));
  expect_accessible("router");
  keep_screenshot("router");
  browser_->run(
      "const s = document.getElementById('scrub'); s.value = 4; s.dispatchEvent(new Event('input')); return 0");
  EXPECT_TRUE(browser_->becomes_true("document.querySelector('output').textContent === 'step 50'"));
  EXPECT_TRUE(
      browser_->becomes_true("document.getElementById('heat-summary').textContent.includes(' 0 without a token')"));
  view("gpus");
  EXPECT_TRUE(browser_->becomes_true("document.querySelectorAll('.chart canvas').length === 2"));
  expect_accessible("GPUs");
  keep_screenshot("gpus");
  view("compare");
  EXPECT_TRUE(
      browser_->becomes_true("document.getElementById('comparison')?.textContent.includes('optim.lr0.0010.002')"));
  expect_accessible("compare");
  keep_screenshot("compare");
  view("messages");
  browser_->run("const s = document.querySelector('#view select'); s.value = '" + one_ +
                "'; s.dispatchEvent(new Event('change')); return 0");
  EXPECT_TRUE(
      browser_->becomes_true("document.getElementById('messages')?.textContent.includes('a <b>slow</b> disk')"));
  expect_accessible("messages");
  keep_screenshot("messages");
  // Searched, with a condition that is wrong and one that is not.
  browser_->type("#query", "los<3");
  EXPECT_TRUE(
      browser_->becomes_true("document.getElementById('run-count').textContent.includes(\"did you mean 'loss'\")"));
  browser_->log("browser");  // the refusal is in the console, as it should
  browser_->run("document.getElementById('query').value = ''; return 0");
  browser_->type("#query", "loss<2.3");
  EXPECT_TRUE(browser_->becomes_true("document.querySelectorAll('#run-table tbody tr').length === 1"));
}

// What is recorded is seen within half a second or so, and a run that begins again from an earlier step, too.
TEST_F(PageTest, FollowsARun) {
  RunStore store(run_dir_ / "experiments.db");
  const std::string id = store.start({.name = "live"});
  MetricsWriter writer(metrics_path(run_dir_, id));
  for (int64_t step = 1; step <= 20; ++step) writer.append(recorded_step(step, 2.0));
  ASSERT_TRUE(browser_->becomes_true("document.querySelectorAll('#run-table input').length === 3"));
  choose(id);
  ASSERT_TRUE(browser_->becomes_true("document.querySelector('.chart .values')?.textContent.includes('live: ')"));
  const auto shows = [&](double loss) {
    return browser_->becomes_true(
        fmt::format("document.querySelector('.chart .values').textContent.includes('live: {}')", loss));
  };
  int64_t step = 100;
  for (const double loss : {3.25, 4.75, 1.125}) {
    const auto begun = std::chrono::steady_clock::now();
    writer.append({.step = ++step, .ts_ms = now_ms(), .scalars = {{"train/loss", loss}}});
    EXPECT_TRUE(shows(loss));
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begun;
    fmt::print("recorded to seen: {:.0f} ms\n", took.count());
    EXPECT_LE(took.count(), 3000.0);
  }
  writer.rewind(10);
  writer.append({.step = 11, .ts_ms = now_ms(), .scalars = {{"train/loss", 7.5}}});
  EXPECT_TRUE(shows(7.5));
  // The server goes, and says so.
  viz_->send(SIGTERM);
  viz_->wait();
  EXPECT_TRUE(browser_->becomes_true("document.getElementById('connection').className === 'lost'"));
  browser_->log("browser");
}

}  // namespace
}  // namespace nmoe::test
