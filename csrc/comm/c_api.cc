// The C interface over communicators, the scheduler and the pool of this process.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends.h"
#include "epl_comm.h"
#include "epl_measure.h"
#include "flight.h"
#include "measure.h"
#include "nccl_libraries.h"
#include "rendezvous.h"
#include "scheduler.h"
#include "shm_arena.h"

struct epl_comm {
  epl_comm(const epl::Options& options_in, std::unique_ptr<epl::Communicator> communicator)
      : options(options_in), scheduler(options_in, std::move(communicator)) {}

  const epl::Options options;
  epl::Scheduler scheduler;
  std::atomic<int> references{1};
};

namespace {

void Fill(char* error, size_t length, const std::string& message) {
  if (error != nullptr && length > 0) std::snprintf(error, length, "%s", message.c_str());
}

void Release(epl_comm* comm) {
  if (comm->references.fetch_sub(1) == 1) delete comm;
}

epl::Status ReadOptions(const epl_comm_options* from, const epl_store* store, epl::Options* to) {
  if (from == nullptr || store == nullptr || store->set == nullptr || store->get == nullptr) {
    return epl::Status(EPL_INVALID, "epl_comm_create: options and a store with set and get are required");
  }
  if (from->size < 1 || from->rank < 0 || from->rank >= from->size || from->name == nullptr) {
    return epl::Status(EPL_INVALID,
                       epl::Format("epl_comm_create: rank %d of %d, name %s; expected 0 <= rank < size and "
                                   "a name",
                                   from->rank, from->size, from->name == nullptr ? "NULL" : from->name));
  }
  if (!(from->timeout_s > 0)) {
    return epl::Status(EPL_INVALID,
                       epl::Format("epl_comm_create: timeout_s is %g, expected more than 0", from->timeout_s));
  }
  to->backend = from->backend == nullptr ? "auto" : from->backend;
  to->name = from->name;
  to->rank = from->rank;
  to->size = from->size;
  to->timeout_s = from->timeout_s;
  to->stall_warning_s = from->stall_warning_s;
  if (from->host != nullptr) to->host = from->host;
  if (from->token != nullptr) to->token = from->token;
  if (from->workers != nullptr) to->workers.assign(from->workers, from->workers + from->size);
  to->device = from->device;
  if (from->nccl_library != nullptr) to->nccl_library = from->nccl_library;
  if (from->cuda_library != nullptr) to->cuda_library = from->cuda_library;
  return epl::Status();
}

// The slots that kernels of this process look up.
struct Pool {
  std::mutex mutex;
  std::vector<epl_comm*> slots;
};

Pool& ThePool() {
  static Pool* pool = new Pool;  // never destroyed: kernels may run until the process ends
  return *pool;
}

}  // namespace

extern "C" {

epl_comm* epl_comm_create(const epl_comm_options* options, const epl_store* store, char* error, size_t error_length) {
  epl::Options checked;
  epl::Status status = ReadOptions(options, store, &checked);
  std::unique_ptr<epl::Communicator> communicator;
  if (status.ok()) {
    epl::Rendezvous rendezvous(checked, *store);
    status = epl::CreateCommunicator(checked, &rendezvous, &communicator);
  }
  if (status.ok()) return new epl_comm(checked, std::move(communicator));
  Fill(error, error_length, status.message);
  return nullptr;
}

void epl_comm_destroy(epl_comm* comm) {
  if (comm == nullptr) return;
  comm->scheduler.Close();
  Release(comm);
}

void epl_comm_abort(epl_comm* comm, const char* reason) {
  comm->scheduler.Abort(reason == nullptr ? "aborted" : reason);
}

void epl_comm_submit(epl_comm* comm, const epl_request* request) {
  epl::Request checked;
  epl::Status status = epl::MakeRequest(*request, comm->options.rank, comm->options.size, &checked);
  if (status.ok()) status = comm->scheduler.Prepare(&checked);
  if (status.ok()) return comm->scheduler.Submit(std::move(checked));
  if (request->done != nullptr) request->done(request->arg, status.code, status.message.c_str());
}

int epl_comm_run(epl_comm* comm, const epl_request* request, char* error, size_t error_length) {
  epl_request untagged = *request;
  untagged.tag = -1;
  untagged.done = [](void*, int, const char*) {};
  epl::Request checked;
  epl::Status status = epl::MakeRequest(untagged, comm->options.rank, comm->options.size, &checked);
  if (status.ok()) status = comm->scheduler.Prepare(&checked);
  if (status.ok()) status = comm->scheduler.RunBlocking(std::move(checked));
  if (!status.ok()) Fill(error, error_length, status.message);
  return status.code;
}

int epl_comm_expect(epl_comm* comm, const int64_t* tags, size_t num_tags) {
  return comm->scheduler.Expect(tags, num_tags).code;
}

int epl_comm_rank(const epl_comm* comm) { return comm->options.rank; }
int epl_comm_size(const epl_comm* comm) { return comm->options.size; }
const char* epl_comm_backend(const epl_comm* comm) { return comm->scheduler.backend(); }

int epl_comm_exchange(epl_comm* comm, const void* input, size_t length, void* output, char* error,
                      size_t error_length) {
  const epl_segment segment = {input, output, length};
  epl_request request = {};
  request.name = "exchange";
  request.collective = EPL_ALL_GATHER;
  request.dtype = EPL_UINT8;
  request.segments = &segment;
  request.num_segments = 1;
  request.scale = 1.0;
  return epl_comm_run(comm, &request, error, error_length);
}

int epl_comm_measure(epl_comm* comm, double* latency_s, double* bytes_per_s, char* error, size_t error_length) {
  epl::Speed speed;
  const epl::Status status = epl::MeasureSpeed(comm->options, &comm->scheduler, &speed);
  if (!status.ok()) Fill(error, error_length, status.message);
  *latency_s = speed.latency_s;
  *bytes_per_s = speed.bytes_per_s;
  return status.code;
}

void* epl_comm_allocate(epl_comm* comm, size_t bytes) { return comm->scheduler.Allocate(bytes); }

void epl_comm_free(void* data) { epl::ShmArena::Free(data); }

void epl_pool_set(int slot, epl_comm* comm) {
  if (slot < 0) return;
  Pool& pool = ThePool();
  epl_comm* before = nullptr;
  {
    std::lock_guard<std::mutex> lock(pool.mutex);
    if (pool.slots.size() <= static_cast<size_t>(slot)) pool.slots.resize(static_cast<size_t>(slot) + 1, nullptr);
    if (comm != nullptr) comm->references.fetch_add(1);
    before = pool.slots[slot];
    pool.slots[slot] = comm;
  }
  if (before != nullptr) Release(before);
}

epl_comm* epl_pool_acquire(int slot) {
  Pool& pool = ThePool();
  std::lock_guard<std::mutex> lock(pool.mutex);
  if (slot < 0 || static_cast<size_t>(slot) >= pool.slots.size() || pool.slots[slot] == nullptr) return nullptr;
  pool.slots[slot]->references.fetch_add(1);
  return pool.slots[slot];
}

void epl_pool_release(epl_comm* comm) {
  if (comm != nullptr) Release(comm);
}

int epl_comm_zero(epl_comm* comm, void* data, size_t bytes, void* stream, char* error, size_t error_length) {
  const epl::Status status = comm->scheduler.Zero(data, bytes, stream);
  if (!status.ok()) Fill(error, error_length, status.message);
  return status.code;
}

int epl_find_nccl(const char* nccl_library, const char* cuda_library, char* error, size_t error_length) {
  const epl::GpuLibraries* libraries = nullptr;
  const epl::Status status = epl::LoadGpuLibraries(cuda_library == nullptr ? "" : cuda_library,
                                                   nccl_library == nullptr ? "" : nccl_library, &libraries);
  if (!status.ok()) Fill(error, error_length, status.message);
  return status.code;
}

void epl_flight_set(epl_flight_ring* ring) { epl::SetFlightRing(ring); }

int epl_comm_interface(void) { return EPL_COMM_INTERFACE; }

int epl_has_gloo(void) { return epl::HasGloo() ? 1 : 0; }

}  // extern "C"
