// Communicators come and go: after an abort new ones can be made, and nothing of the old ones stays.
#include <dirent.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>

#include "harness.h"

namespace {

using test::Outcome;
using test::Rank;

int Entries(const char* folder) {
  int entries = 0;
  if (DIR* opened = opendir(folder)) {
    while (readdir(opened) != nullptr) ++entries;
    closedir(opened);
  }
  return entries;
}

struct Held {
  int files, threads, segments;
};

Held Count() {
  Held held = {Entries("/proc/self/fd"), Entries("/proc/self/task"), 0};
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    held.segments += line.find("epl_comm (deleted)") != std::string::npos;
  return held;
}

bool Within(const Held& now, const Held& first) {
  return now.files <= first.files && now.threads <= first.threads && now.segments <= first.segments;
}

// What is held now, once it is no more than at first or a while has gone by: the kernel lists a thread for a moment
// after it has been joined.
Held CountOnceWithin(const Held& first) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  Held now = Count();
  while (!Within(now, first) && std::chrono::steady_clock::now() < give_up) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    now = Count();
  }
  return now;
}

TEST(generations_leave_nothing) {
  for (const std::string& backend : test::Backends()) {
    const bool all = backend == "shm" || backend == "tcp";
    test::Run(backend == "hierarchical/2" ? 3 : 2, backend, [all](Rank& me) {
      Held first = {};
      const int generations = all ? 120 : 20;
      for (int generation = 0; generation < generations; ++generation) {
        Rank next = me;
        const Outcome made = next.Create("g" + std::to_string(generation));
        CHECK_THAT(made.code == 0, made.message);
        if (made.code != 0) return;
        float value = static_cast<float>(me.rank + 1);
        const epl_segment segment = {&value, &value, 1};
        const Outcome sum = next.Run(test::MakeRequest("sum", EPL_ALL_REDUCE, EPL_FLOAT32, &segment, 1));
        const bool aborted = generation % 3 > 0;  // which may come before this rank is through with the sum
        const bool right = sum.code == EPL_OK && value == static_cast<float>(me.size * (me.size + 1) / 2);
        CHECK_THAT(right || (aborted && sum.code == EPL_ABORTED), std::to_string(sum.code) + sum.message);
        // Some end in good order, some with an abort by one rank or another.
        if (aborted) {
          if (generation % me.size == me.rank) epl_comm_abort(next.comm, "enough");
          const Outcome late = next.Run(test::MakeRequest("late", EPL_BARRIER, EPL_UINT8, nullptr, 0));
          CHECK_THAT(late.code == EPL_ABORTED, std::to_string(late.code) + late.message);
        }
        epl_comm_destroy(next.comm);
        if (generation == 2) first = Count();
        if (generation <= 2) continue;
        const Held now = CountOnceWithin(first);
        CHECK_THAT(now.files <= first.files,
                   std::to_string(now.files) + " files, before " + std::to_string(first.files));
        CHECK_THAT(now.threads <= first.threads, std::to_string(now.threads) + " threads");
        CHECK_THAT(now.segments <= first.segments, std::to_string(now.segments) + " segments");
      }
    });
  }
}

}  // namespace
