// One rank of run.py. Usage: all_reduce_rank FOLDER RANK SIZE ADDRESS BYTES ROUNDS BACKEND...
// Makes a communicator of each back end and times all-reduces of float32 with them in turn. Rank 0 prints a line for
// each back end: what it is, and the milliseconds of every round (of its slowest rank).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "epl_comm.h"
#include "file_store.h"

namespace {

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int Fail(int rank, const char* error) {
  std::fprintf(stderr, "rank %d: %s\n", rank, error);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 8) return Fail(-1, "usage: all_reduce_rank FOLDER RANK SIZE ADDRESS BYTES ROUNDS BACKEND...");
  FileStore store(argv[1]);
  const int rank = std::atoi(argv[2]), size = std::atoi(argv[3]), rounds = std::atoi(argv[6]);
  const size_t count = std::strtoull(argv[5], nullptr, 10) / sizeof(float);
  char error[2048] = "";
  std::vector<epl_comm*> comms;
  for (int i = 7; i < argc; ++i) {
    const std::string name = "bench" + std::to_string(i);
    const epl_comm_options options = {argv[i], name.c_str(), rank, size, 120.0, 0.0, argv[4], "token"};
    comms.push_back(epl_comm_create(&options, &store.store, error, sizeof(error)));
    if (comms.back() == nullptr) return Fail(rank, error);
  }
  std::vector<float> in(count), out(count);
  for (size_t i = 0; i < count; ++i) in[i] = static_cast<float>((i + static_cast<size_t>(rank)) % 8);
  const epl_segment segment = {in.data(), out.data(), count};
  epl_request request = {};
  request.name = "bench";
  request.collective = EPL_ALL_REDUCE;
  request.dtype = EPL_FLOAT32;
  request.reduce_op = EPL_SUM;
  request.segments = &segment;
  request.num_segments = 1;
  request.scale = 1.0;
  std::vector<std::vector<double>> times(comms.size());
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < comms.size(); ++i) {
      char byte = 0;
      std::vector<char> bytes(static_cast<size_t>(size));
      if (epl_comm_exchange(comms[i], &byte, 1, bytes.data(), error, sizeof(error)) != 0) return Fail(rank, error);
      const double start = Now();
      if (epl_comm_run(comms[i], &request, error, sizeof(error)) != 0) return Fail(rank, error);
      const double mine = Now() - start;
      for (size_t at = 0; at < count; at += 997) {
        float expected = 0;
        for (int r = 0; r < size; ++r) expected += static_cast<float>((at + static_cast<size_t>(r)) % 8);
        if (out[at] != expected) return Fail(rank, "the sum is wrong");
      }
      std::vector<double> all(static_cast<size_t>(size));
      if (epl_comm_exchange(comms[i], &mine, sizeof(mine), all.data(), error, sizeof(error)) != 0) {
        return Fail(rank, error);
      }
      if (round >= 0) times[i].push_back(*std::max_element(all.begin(), all.end()) * 1e3);
    }
  }
  for (size_t i = 0; rank == 0 && i < comms.size(); ++i) {
    std::printf("%s", epl_comm_backend(comms[i]));
    for (double time : times[i]) std::printf(" %.3f", time);
    std::printf("\n");
  }
  for (epl_comm* comm : comms) epl_comm_destroy(comm);
  return 0;
}
