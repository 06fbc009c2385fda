/* LayerNorm over rows of C channels: forward and backward, in float, each writing into what it is given.
 *
 * y = (x - mean) * rstd * weight + bias
 * With g = dy * weight and xhat = (x - mean) * rstd:
 * dx = rstd * (g - mean(g) - xhat * mean(g * xhat)),  dweight = sum over rows of dy * xhat,  dbias = sum of dy.
 *
 * Compiled with -DBUG, the last term of dx is missing: the part by which a row's spread depends on x. Training still
 * runs and the loss still falls, which is why this mistake lives long.
 */
#include <math.h>

void layernorm_forward(float *y, float *mean, float *rstd, const float *x, const float *weight, const float *bias,
                       double eps, int rows, int channels) {
    for (int r = 0; r < rows; r++) {
        const float *row = x + (long)r * channels;
        double sum = 0, spread = 0;
        for (int c = 0; c < channels; c++) sum += row[c];
        float m = (float)(sum / channels);
        for (int c = 0; c < channels; c++) spread += (double)(row[c] - m) * (row[c] - m);
        float s = (float)(1 / sqrt(spread / channels + eps));
        for (int c = 0; c < channels; c++) y[(long)r * channels + c] = (row[c] - m) * s * weight[c] + bias[c];
        mean[r] = m;
        rstd[r] = s;
    }
}

void layernorm_backward(float *dx, float *dweight, float *dbias, const float *dy, const float *x, const float *weight,
                        const float *mean, const float *rstd, int rows, int channels) {
    for (int c = 0; c < channels; c++) dweight[c] = dbias[c] = 0;
    for (int r = 0; r < rows; r++) {
        const float *row = x + (long)r * channels, *drow = dy + (long)r * channels;
        double g_sum = 0, gx_sum = 0;
        for (int c = 0; c < channels; c++) {
            double g = (double)drow[c] * weight[c];
            g_sum += g;
            gx_sum += g * ((row[c] - mean[r]) * rstd[r]);
        }
        float g_mean = (float)(g_sum / channels), gx_mean = (float)(gx_sum / channels);
#ifdef BUG
        gx_mean = 0;
#endif
        for (int c = 0; c < channels; c++) {
            float xhat = (row[c] - mean[r]) * rstd[r];
            dx[(long)r * channels + c] = rstd[r] * (drow[c] * weight[c] - g_mean - xhat * gx_mean);
            dweight[c] += drow[c] * xhat;
            dbias[c] += drow[c];
        }
    }
}
