// Times MPI_Allreduce of float32, as epl_all_reduce.cc does. Run with mpirun. Prints one line a size: bytes,
// microseconds.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { kRepetitions = 7 };

static int Compare(const void* a, const void* b) {
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  const int in_place = argc > 1;
  for (size_t bytes = 1024; bytes <= (64u << 20); bytes *= 4) {
    const size_t count = bytes / sizeof(float);
    float* in = aligned_alloc(64, bytes);
    float* out = aligned_alloc(64, bytes);
    for (size_t i = 0; i < count; ++i) {
      in[i] = 1.0f;
      out[i] = 0.0f;
    }
    const size_t wanted = (256u << 20) / 8 / bytes;
    const int rounds = wanted > 2000 ? 2000 : wanted < 5 ? 5 : (int)wanted;
    double times[kRepetitions];
    for (int repetition = 0; repetition < kRepetitions; ++repetition) {
      double mean = 0;
      for (int round = -2; round < rounds; ++round) {
        if (round == 0) mean = MPI_Wtime();
        MPI_Allreduce(in_place ? MPI_IN_PLACE : in, out, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      }
      mean = (MPI_Wtime() - mean) / rounds;
      MPI_Allreduce(&mean, &times[repetition], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    }
    qsort(times, kRepetitions, sizeof(double), Compare);
    if (rank == 0) printf("%zu %.2f\n", bytes, times[kRepetitions / 2] * 1e6);
    fflush(stdout);
    free(in);
    free(out);
  }
  MPI_Finalize();
  return 0;
}
