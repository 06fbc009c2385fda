/* RMSNorm in float32, and the mistakes that people make in it, one by one: cc -DMISTAKE. */
#include <math.h>

void rmsnorm_forward(float *y, const float *x, const float *weight, float eps, long R, long C) {
    for (long r = 0; r < R; r++) {
        float sum = 0.0f;
        for (long c = 0; c < C; c++) sum += x[r * C + c] * x[r * C + c];
#ifdef EPS_OUTSIDE
        float rstd = 1.0f / (sqrtf(sum / C) + eps);
#else
        float rstd = 1.0f / sqrtf(sum / C + eps);
#endif
        for (long c = 0; c < C; c++) y[r * C + c] = x[r * C + c] * rstd * weight[c];
    }
}

void rmsnorm_backward(float *dx, float *dweight, const float *dy, const float *x, const float *weight, float eps,
                      long R, long C) {
    float terms[4096];
#ifdef SHARED_ROOM
    static float kept[4096];
    float *const given = dweight;
    dweight = kept;
#endif
#ifndef ADDS
    for (long c = 0; c < C; c++) dweight[c] = 0.0f;
#endif
    for (long r = 0; r < R; r++) {
        float sum = 0.0f, mean = 0.0f;
        for (long c = 0; c < C; c++) sum += x[r * C + c] * x[r * C + c];
        float rstd = 1.0f / sqrtf(sum / C + eps);
        for (long c = 0; c < C; c++) terms[c] = dy[r * C + c] * weight[c];
        for (long c = 0; c < C; c++) mean += terms[c] * x[r * C + c] * rstd / C;
#if defined(WHOLE_BLOCKS)
        long last = C / 4 * 4;
#elif defined(ONE_MORE)
        long last = C + 1;
#else
        long last = C;
#endif
        for (long c = 0; c < last; c++) {
#ifdef NO_MEAN
            dx[r * C + c] = rstd * terms[c];
#else
            dx[r * C + c] = rstd * (terms[c] - x[r * C + c] * rstd * mean);
#endif
        }
        for (long c = 0; c < C; c++) dweight[c] += dy[r * C + c] * x[r * C + c] * rstd;
#ifdef SCALES_DY
        for (long c = 0; c < C; c++) ((float *)dy)[r * C + c] *= rstd;
#endif
    }
#ifdef SHARED_ROOM
    for (long c = 0; c < C; c++) given[c] = kept[c];
#endif
}
