#include "cli/run_options.h"

#include <fmt/format.h>

#include <string_view>

#include "base/error.h"
#include "cli/command_options.h"

namespace nmoe::cli {
namespace {

void add_runs(CLI::App& app, RunsArguments& arguments, std::function<void()>& run) {
  CLI::App* runs = app.add_subcommand("runs", "list runs and their outcomes; show, compare and export them");
  runs->require_subcommand(0, 1);
  runs->add_option("--dir", arguments.dir, "folder of runs (run.dir)")->capture_default_str();
  runs->add_option("-n,--limit", arguments.limit, "most runs to list; 0: all")->check(number(0))->capture_default_str();
  runs->add_option("--filter", arguments.filters,
                   "only runs that meet this condition, such as 'loss<2.5', 'status=completed', 'name~quick'; "
                   "if repeated, all conditions; also for compare")
      ->allow_extra_args(false);
  runs->add_option("--sort", arguments.sort,
                   "by id, name, experiment, status, started, step, tokens, loss, valid, bpb, rate or checkpoint; with "
                   "- in front, descending (default: newest first)");
  runs->add_flag("--group", arguments.grouped, "group by experiment");
  runs->add_flag("--json", arguments.json, "print JSON; also for show and compare");
  runs->callback([&arguments, &run, runs] {
    if (runs->get_subcommands().empty()) run = [&arguments] { runs_command(arguments); };
  });
  const auto add = [&arguments, &run, runs](const char* name, const char* what, void (*command)(const RunsArguments&)) {
    CLI::App* sub = runs->add_subcommand(name, what)->fallthrough();
    sub->callback([&arguments, &run, command, name] {
      if (!arguments.filters.empty() && std::string_view(name) != "compare") {
        throw usage_error(fmt::format("n runs {}: --filter has no effect there", name),
                          "leave it out and name the runs: n runs --filter ... lists those that meet conditions");
      }
      run = [&arguments, command] { command(arguments); };
    });
    return sub;
  };
  const auto take_runs = [&arguments](CLI::App* sub, int most, const char* what) {
    CLI::Option* option = sub->add_option("run", arguments.runs, what);
    return option->required()->expected(1, most)->type_name("RUN")->allow_extra_args(most > 1);
  };
  constexpr const char* kRun = "a run's id, the beginning of one, or a name, for the newest run with it";
  take_runs(add("show", "show one run: its record, and the last value of each metric", runs_show_command), 1, kRun);
  CLI::App* compare = add("compare", "rank configurations at an equal amount of training, with intervals over seeds",
                          runs_compare_command);
  take_runs(compare, 1000, "ids, their beginnings, or names, each for its newest run; or --filter instead")
      ->required(false);
  compare->add_option("--goal", arguments.goal, "metric to rank by (n runs tags) [valid/loss, where all have it]");
  compare->add_option("--direction", arguments.direction, "whether the least or the largest is the best: min or max")
      ->check(CLI::IsMember({"min", "max"}))
      ->capture_default_str();
  add_ranking(compare, arguments.by, arguments.markdown);
  CLI::App* plot = add("plot", "plot a curve in the terminal", runs_plot_command);
  take_runs(plot, 1000, kRun);
  plot->add_option("--tag", arguments.tag, "metric to plot (n runs tags)")->capture_default_str();
  CLI::App* to = add("export", "write what runs have recorded to files", runs_export_command);
  take_runs(to, 1000, kRun);
  to->add_option("--format", arguments.format, "csv or json (scalars and arrays), tensorboard (scalars)")
      ->check(CLI::IsMember({"csv", "json", "tensorboard"}))
      ->capture_default_str();
  to->add_option("-o,--out", arguments.out, "folder in which to create a folder for each run")->required();
  CLI::App* note = add("note", "attach a note to a run", runs_note_command);
  take_runs(note, 1, kRun);
  note->add_option("text", arguments.note, "the note; \"\" removes it")->required();
  take_runs(
      add("prune", "remove the optimizer's state from all checkpoints of runs but the newest", runs_prune_command),
      1000, kRun);
  take_runs(add("rm", "delete runs and their metrics; checkpoints stay", runs_rm_command), 1000, kRun);
  CLI::App* tags = runs->add_subcommand("tags", "list every metric that runs record, as in docs/metrics.md");
  tags->callback([&run] { run = [] { runs_tags_command(); }; });
}

void add_mon(CLI::App& app, MonArguments& arguments, std::function<void()>& run) {
  CLI::App* mon = app.add_subcommand("mon", "watch a run in the terminal");
  mon->add_option("run", arguments.run,
                  "a run's id, the beginning of one, or a name (default: the newest that is running)")
      ->type_name("RUN");
  mon->add_option("--dir", arguments.dir, "folder of runs (run.dir)")->capture_default_str();
  mon->add_flag("-C,--no-color", arguments.no_colour, "without colours, as with NO_COLOR in the environment");
  mon->callback([&arguments, &run] { run = [&arguments] { mon_command(arguments); }; });
}

void add_viz(CLI::App& app, VizArguments& arguments, std::function<void()>& run) {
  CLI::App* viz = app.add_subcommand("viz", "show runs in a browser, live");
  viz->add_option("--dir", arguments.dir, "folder of runs (run.dir)")->capture_default_str();
  viz->add_option("--host", arguments.host, "address to listen on")->capture_default_str();
  viz->add_option("--port", arguments.port, "port to listen on; 0: any free one")
      ->check(number(0, 65535))
      ->capture_default_str();
  viz->add_option("--allow-host", arguments.allowed_hosts,
                  "a name to accept in the Host header, besides this machine's")
      ->type_name("NAME");
  viz->add_option("--memory", arguments.memory, "memory for metrics that are kept after they were read")
      ->capture_default_str();
  viz->callback([&arguments, &run] { run = [&arguments] { viz_command(arguments); }; });
}

}  // namespace

void add_run_commands(CLI::App& app, RunsArguments& runs, MonArguments& mon, VizArguments& viz,
                      std::function<void()>& run) {
  add_runs(app, runs, run);
  add_mon(app, mon, run);
  add_viz(app, viz, run);
}

}  // namespace nmoe::cli
