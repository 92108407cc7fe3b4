// C interface of the communicator library. No TensorFlow and no C++ types cross it, so one build serves every
// TensorFlow, whichever C++ ABI that was compiled with.
//
// A communicator connects `size` ranks (worker processes). Work is submitted and completes asynchronously on the
// communicator's own progress thread. All ranks must submit the same collectives; requests that carry a tag >= 0 run in
// the order given by epl_comm_expect(), whatever order they were submitted in, so ranks agree on it without asking.
#ifndef EPL_COMM_H_
#define EPL_COMM_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPL_EXPORT __attribute__((visibility("default")))

// The number of this interface, that is of this header and of epl_measure.h: raised with each change of what they
// declare, here and in epl/communicators/interface.py, but for members that are added at a structure's end, which
// earlier libraries do not look at. Libraries and Python code with different numbers do not work together.
#define EPL_COMM_INTERFACE 5

typedef struct epl_comm epl_comm;

typedef enum {
  EPL_FLOAT16 = 0,
  EPL_BFLOAT16 = 1,
  EPL_FLOAT32 = 2,
  EPL_FLOAT64 = 3,
  EPL_INT32 = 4,
  EPL_INT64 = 5,
  EPL_UINT8 = 6,
  EPL_BOOL = 7
} epl_dtype;

typedef enum { EPL_SUM = 0, EPL_MEAN = 1, EPL_MIN = 2, EPL_MAX = 3, EPL_PROD = 4 } epl_reduce_op;

typedef enum {
  EPL_ALL_REDUCE = 0,
  EPL_REDUCE = 1,
  EPL_BROADCAST = 2,
  EPL_ALL_GATHER = 3,
  EPL_ALL_GATHER_V = 4,
  EPL_REDUCE_SCATTER = 5,
  EPL_ALL_TO_ALL = 6,
  EPL_ALL_TO_ALL_V = 7,
  EPL_SEND = 8,
  EPL_RECV = 9,
  EPL_BARRIER = 10
} epl_collective;

// Error codes handed to epl_done and returned by the blocking calls.
typedef enum {
  EPL_OK = 0,
  EPL_TIMEOUT = 1,    // a peer did not arrive within timeout_s; the message names the collective and the missing ranks
  EPL_ABORTED = 2,    // epl_comm_abort() here or at a peer; the message carries the reason
  EPL_PEER_LOST = 3,  // a peer's process or connection is gone; the message names the rank
  EPL_MISMATCH = 4,   // ranks disagree on collective, name, dtype, count or reduce op; the message names both sides
  EPL_INVALID = 5,    // bad argument; nothing was sent
  EPL_INTERNAL = 6
} epl_code;

// The rendezvous store that the caller provides (epl/communicators/bootstrap.py). All return 0 on success.
// `get` waits until the key exists or timeout_s has passed; it writes at most `capacity` bytes and the true length.
typedef struct {
  void* context;
  int (*set)(void* context, const char* key, const uint8_t* value, size_t length);
  int (*get)(void* context, const char* key, uint8_t* value, size_t capacity, size_t* length, double timeout_s);
  // Brings `value` to `topic` as one of `size` ranks and waits for the others': calls take(arg, rank, value, length)
  // for each rank in turn; or, when the time is over, with NULL for each rank that has not come. One call to the store,
  // where set and get would be `size`. NULL: set and get serve, with the keys topic/rank.
  int (*gather)(void* context, const char* topic, int rank, int size, const uint8_t* value, size_t length,
                double timeout_s, void (*take)(void* arg, int rank, const uint8_t* value, size_t length), void* arg);
} epl_store;

typedef struct {
  // "shm", "tcp" or "gloo"; or "auto": shm when all ranks share a host, tcp when every host has one rank, and else
  // hierarchical: shared memory within hosts, TCP between them. Its variants: "flat" takes tcp between hosts always,
  // "hierarchical" fails where ranks of a host cannot share memory, instead of going on with tcp. "gloo" moves the same
  // collectives over Gloo's connections; its sockets accept a connection before its other end has proved the token.
  // "auto/2" (for tests; also the variants) takes every 2 ranks in a row as a host. "nccl" or "nccl/auto" and so on: a
  // communicator of the second kind for host memory, and NCCL between GPUs beside it. Fails where a rank has no NCCL or
  // no GPU; "gpu" and "gpu/auto" go on without NCCL then.
  const char* backend;
  const char* name;  // unique in the job and the same on all ranks, e.g. "g0/data1"
  int rank;
  int size;
  double timeout_s;          // how long one collective may wait for peers; also for creation
  double stall_warning_s;    // a line on stderr naming the collective and missing ranks after this long; 0 = never
  const char* host;          // this rank's address that peers can reach; NULL = loopback
  const char* token;         // job token: peers prove it before anything else
  int device;                // nccl: the GPU of this rank, as CUDA numbers it in this process
  const char* nccl_library;  // nccl: paths of libnccl.so.2 and of the CUDA runtime; NULL or "": where the system's
  const char* cuda_library;  // loader finds them
  const int* workers;  // the number of the worker that each rank is, which messages then name; NULL: they name ranks
} epl_comm_options;

// One piece of a message. Pieces are concatenated into one collective (fusion without a buffer of the caller's).
// `in` and `out` may be the same; `in` is only read. `count` is in elements.
typedef struct {
  const void* in;
  void* out;
  size_t count;
} epl_segment;

typedef void (*epl_done)(void* arg, int code, const char* message);
// For collectives whose output size depends on peers (EPL_ALL_GATHER_V, EPL_ALL_TO_ALL_V, EPL_BROADCAST with unknown
// size): called once on the progress thread with the element count from every rank; returns the output buffer for their
// sum, in rank order, or NULL to fail. `extra` is the root's `header` for EPL_BROADCAST.
typedef void* (*epl_allocate)(void* arg, const size_t* counts, int size, const uint8_t* extra, size_t extra_length);
// Called on the same thread after `allocate` has returned NULL: writes why, at most `length` bytes with the 0 at their
// end, and returns the code that all ranks get with it.
typedef int (*epl_refusal)(void* arg, char* message, size_t length);

// What the segments hold, with n = size:
//   all_reduce      `count` elements in and out. Reduced in rank order, or, if hierarchical, within each host in rank
//                   order and then over the hosts: every rank gets the same bits in any case. 16-bit floats are summed
//                   in float32 and rounded once; mean of integers truncates towards zero; integer sums wrap; bool has
//                   min (all), max (any).
//   reduce          the same; `out` is used at the root only.
//   broadcast       `in` at the root, `out` elsewhere. These three see one stream, however it is cut into segments.
//   all_gather      `in` count, `out` n * count elements: for each segment one block per rank, in rank order.
//   reduce_scatter  `in` count, `out` count / n elements: for each segment this rank's share. With send_counts (the
//                   same on all ranks) the stream of all segments has shares of these sizes, and this rank's goes to
//                   the first segment's `out`.
//   all_to_all      `in` and `out` count elements; block r, of count / n elements, goes to and comes from rank r.
//   all_gather_v    `in`, the stream of all segments. Output through `allocate`. Where each `out` is its `in`, nobody
//                   looks at this rank's own part of the output, which may stay as it was; else `out` is not used.
//   all_to_all_v    `in` only, one segment, cut by send_counts. Output through `allocate`.
//   send, recv      `in` or `out`. A send may end when a small message is on its way, or as late as when the receiver
//                   has all of it: ranks must not wait for each other in a circle.
//   barrier         none.
typedef struct {
  int64_t tag;       // >= 0: runs at its place in epl_comm_expect(); -1: runs in submission order
  const char* name;  // for error messages and the mismatch check; copied
  epl_collective collective;
  epl_dtype dtype;
  epl_reduce_op reduce_op;
  int peer;                     // root of broadcast/reduce, peer of send/recv
  const epl_segment* segments;  // copied; the buffers stay the caller's until `done`
  size_t num_segments;
  double scale;  // reductions: result is multiplied by this (1.0 = not); floating types only
  const size_t*
      send_counts;        // ALL_TO_ALL_V: elements to each rank (size entries); REDUCE_SCATTER uneven shares; else NULL
  const uint8_t* header;  // EPL_BROADCAST, root only: small opaque bytes (e.g. a shape) handed to receivers' allocate
  size_t header_length;
  epl_allocate allocate;  // NULL when segments' `out` say where results go
  epl_refusal refusal;    // NULL: EPL_INTERNAL and that it returned NULL
  epl_done done;          // called exactly once, on the progress thread or (invalid request) on the caller's
  void* arg;
  // NULL: the buffers lie in host memory. With "nccl" also: the CUDA stream (cudaStream_t) that makes the inputs, and
  // the buffers lie in memory of the communicator's GPU. The collective begins when the stream has come to where it was
  // when the request was submitted; what the caller puts on it afterwards runs beside. With `done` the results are
  // there and the buffers the caller's again; nothing waits for the GPU but the progress thread. All ranks must give
  // GPU memory, or none. Sums of 16-bit floats are NCCL's own: what is accumulated in which type is up to it. A scale
  // multiplies each rank's numbers before they are summed. Mean of integers is not available.
  void* stream;
} epl_request;

// Creates a communicator; blocks until all ranks have joined or timeout_s. On failure returns NULL and fills error.
EPL_EXPORT epl_comm* epl_comm_create(const epl_comm_options* options, const epl_store* store, char* error,
                                     size_t error_length);
// Aborts, joins the progress thread and frees. Requests under way get EPL_ABORTED first.
EPL_EXPORT void epl_comm_destroy(epl_comm* comm);
// Fails everything under way and everything later, here and at the peers. The first reason wins. Thread-safe.
EPL_EXPORT void epl_comm_abort(epl_comm* comm, const char* reason);
EPL_EXPORT void epl_comm_submit(epl_comm* comm, const epl_request* request);
// Runs one untagged collective to its end and returns its code; request->done and tag are not used. On the calling
// thread when nothing else is under way (the fastest way for small messages), else in its turn on the progress thread.
EPL_EXPORT int epl_comm_run(epl_comm* comm, const epl_request* request, char* error, size_t error_length);
// Declares the tagged requests of the next step in their order. Tags take their places in the row of all requests here,
// so an untagged request submitted later runs after them. A tag that was not declared is refused (EPL_INVALID). Fails
// (EPL_INVALID) if tags of the step before are still open.
EPL_EXPORT int epl_comm_expect(epl_comm* comm, const int64_t* tags, size_t num_tags);
EPL_EXPORT int epl_comm_rank(const epl_comm* comm);
EPL_EXPORT int epl_comm_size(const epl_comm* comm);
EPL_EXPORT const char* epl_comm_backend(const epl_comm* comm);  // "shm", "tcp", "gloo", "hierarchical" or "nccl"

// Blocking all-gather of a small message of `length` bytes a rank, on the calling thread; output is size * length
// bytes.
EPL_EXPORT int epl_comm_exchange(epl_comm* comm, const void* input, size_t length, void* output, char* error,
                                 size_t error_length);

// From here on an all-reduce makes use of memory that the ranks of a host share.
#define EPL_SHARED_BYTES (1024 * 1024)
// Such memory, aligned as TensorFlow's. Where all outputs of an all-reduce lie there, on all ranks, each rank writes
// its share of the result to where it is wanted at every rank, and inputs that lie there are read where they are. NULL
// where there is none or no room: any other memory serves. Any thread.
EPL_EXPORT void* epl_comm_allocate(epl_comm* comm, size_t bytes);
EPL_EXPORT void epl_comm_free(void* data);  // any thread, also when the communicator is gone

// The pool that the TensorFlow kernels of this process use: slots 0..n-1. Set before a step runs; NULL clears a slot.
// acquire/release keep a communicator alive while a kernel submits to it.
EPL_EXPORT void epl_pool_set(int slot, epl_comm* comm);
EPL_EXPORT epl_comm* epl_pool_acquire(int slot);
EPL_EXPORT void epl_pool_release(epl_comm* comm);

// Zeroes GPU memory in the order of `stream`; "nccl" only. Returns a code, and does not wait.
EPL_EXPORT int epl_comm_zero(epl_comm* comm, void* data, size_t bytes, void* stream, char* error, size_t error_length);

// Whether NCCL and the CUDA runtime can be loaded, from these paths or, where NULL or "", as the system's loader finds
// them: EPL_OK, or EPL_INVALID and in `error` what is missing. Loads them; needs no GPU.
EPL_EXPORT int epl_find_nccl(const char* nccl_library, const char* cuda_library, char* error, size_t error_length);

// One collective, as it lies in the flight recorder of a process. Times are of CLOCK_MONOTONIC, in nanoseconds.
typedef struct {
  int64_t begin_ns;
  int64_t end_ns;      // 0 while it is under way
  int32_t collective;  // an epl_collective
  int32_t code;        // how it ended: an epl_code
  int64_t bytes;       // of this rank's input, or output where it only receives
  int64_t tag;
  char name[88];  // of the request, cut to fit
} epl_flight_event;

typedef struct {
  uint64_t next;      // how many have begun so far; number k is at k % capacity
  uint64_t capacity;  // of `events`
  int64_t total_ns;   // of all that have ended
  int64_t total_bytes;
  int64_t reserved[4];
  epl_flight_event events[1];  // `capacity` of them
} epl_flight_ring;

// From now on all communicators of this process note their collectives in `ring`, whose other members the caller has
// set to 0; it must stay where it is as long as the process lives. It may be a file that others map: they then see what
// this process is in, be it stopped or killed. NULL: in none.
EPL_EXPORT void epl_flight_set(epl_flight_ring* ring);

EPL_EXPORT int epl_comm_interface(void);  // the EPL_COMM_INTERFACE of this build

EPL_EXPORT int epl_has_gloo(void);  // 1 when this build has the Gloo back end

#ifdef __cplusplus
}
#endif
#endif  // EPL_COMM_H_
