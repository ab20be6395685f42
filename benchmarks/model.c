/* What the model bank does per pod, as a plain loop over dense arrays: one sample into histogram,
   moments and recent slots of each resource, then its quantile and mean + n * deviation. */

#include <math.h>
#include <stdint.h>

enum { SLOTS = 288, CODES = 65533 };

typedef struct {
    const double *starts, *ends;
    int64_t buckets;
    double fraction, lowest, step;
} layout;

static int64_t find(const layout *l, double value) {
    int64_t low = 0, high = l->buckets;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (l->starts[middle] <= value) low = middle; else high = middle;
    }
    return low;
}

/* One window: `values` (pods, 2) with decay factors `by` (2,); arrays of pods are row by row. */
void update(const layout *layouts, int64_t pods, const double *values, const double *by,
            int64_t slot, double *cpu, double *memory, double *weight, double *mean,
            double *squares, int64_t *samples, uint16_t *recent) {
    for (int64_t i = 0; i < pods; i++) {
        for (int r = 0; r < 2; r++) {
            const layout *l = layouts + r;
            int64_t at = 2 * i + r;
            double value = values[at];
            if (isnan(value)) continue;
            (r ? memory : cpu)[i * l->buckets + find(l, value)] += by[r];
            double total = weight[at] + by[r], delta = value - mean[at];
            double moved = delta * (by[r] / total);
            squares[at] += weight[at] * delta * moved;
            mean[at] += moved;
            weight[at] = total;
            samples[at]++;
            double code = ceil(log(value / l->lowest) / l->step);
            uint16_t kept = 2 + (uint16_t)(code < 0 ? 0 : code > CODES ? CODES : code);
            uint16_t *place = recent + at * SLOTS + slot;
            if (value == 0) kept = 1;
            if (*place < kept) *place = kept;
        }
    }
}

/* `quantiles` and `sigmas` (pods, 2). */
void peaks(const layout *layouts, int64_t pods, double times, const double *cpu,
           const double *memory, const double *weight, const double *mean, const double *squares,
           double *quantiles, double *sigmas) {
    for (int64_t i = 0; i < pods; i++) {
        for (int r = 0; r < 2; r++) {
            const layout *l = layouts + r;
            int64_t at = 2 * i + r, bucket = 0;
            const double *weights = (r ? memory : cpu) + i * l->buckets;
            double total = 0, running = weights[0];
            for (int64_t b = 0; b < l->buckets; b++) total += weights[b];
            while (bucket < l->buckets - 1 && running < l->fraction * total)
                running += weights[++bucket];
            quantiles[at] = total > 0 ? l->ends[bucket] : NAN;
            sigmas[at] = weight[at] > 0 ? mean[at] + times * sqrt(squares[at] / weight[at]) : NAN;
        }
    }
}
