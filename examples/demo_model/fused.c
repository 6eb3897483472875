/* Row kernels of the training model; each does in one sweep what takes torch several passes over memory. */
#include <math.h>

#define ROOT 1.5957691216057308f /* 2 sqrt(2 / pi) */
#define CUBE 0.044715f

/* Bounded so that no infinity meets the compiler's fast reciprocal. */
static inline float gate_of(float a) { return 1.0f / (1.0f + expf(fminf(-ROOT * (a + CUBE * a * a * a), 60.0f))); }

static float inverse_rms(const float *x, int n, float eps) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return 1.0f / sqrtf(sum / n + eps);
}

void rms_forward(const float *x, const float *w, float *y, float *scale, long rows, int n, float eps) {
    for (long r = 0; r < rows; r++, x += n, y += n) {
        float s = scale[r] = inverse_rms(x, n, eps);
        for (int i = 0; i < n; i++) y[i] = x[i] * s * w[i];
    }
}

void rms_backward(const float *g, const float *x, const float *w, const float *scale, float *dx, float *dw, long rows, int n) {
    for (long r = 0; r < rows; r++, g += n, x += n, dx += n) {
        float s = scale[r], inner = 0;
        for (int i = 0; i < n; i++) inner += g[i] * w[i] * x[i];
        inner *= s * s / n;
        for (int i = 0; i < n; i++) {
            dx[i] = s * (g[i] * w[i] - x[i] * inner);
            dw[i] += g[i] * x[i] * s;
        }
    }
}

/* Head rows: x has `heads` heads of n values per token, `stride` apart; cos and sin hold n / 2 values per token. */
void head_forward(const float *x, long stride, const float *w, const float *cosine, const float *sine, long period, float *y,
                  float *scale, long tokens, int heads, int n, float eps) {
    int half = n / 2;
    for (long t = 0; t < tokens; t++) {
        const float *c = cosine + (t % period) * half, *s = sine + (t % period) * half;
        for (int h = 0; h < heads; h++, y += n) {
            const float *row = x + t * stride + h * n;
            float k = scale[t * heads + h] = inverse_rms(row, n, eps);
            for (int i = 0; i < half; i++) {
                float a = row[i] * k * w[i], b = row[i + half] * k * w[i + half];
                y[i] = a * c[i] - b * s[i];
                y[i + half] = b * c[i] + a * s[i];
            }
        }
    }
}

void head_backward(const float *g, const float *x, long stride, const float *w, const float *cosine, const float *sine, long period,
                   const float *scale, float *dx, float *dw, long tokens, int heads, int n) {
    int half = n / 2;
    float turned[512];
    for (long t = 0; t < tokens; t++) {
        const float *c = cosine + (t % period) * half, *s = sine + (t % period) * half;
        for (int h = 0; h < heads; h++, g += n, dx += n) {
            const float *row = x + t * stride + h * n;
            float k = scale[t * heads + h], inner = 0;
            for (int i = 0; i < half; i++) {
                turned[i] = g[i] * c[i] + g[i + half] * s[i];
                turned[i + half] = g[i + half] * c[i] - g[i] * s[i];
            }
            for (int i = 0; i < n; i++) inner += turned[i] * w[i] * row[i];
            inner *= k * k / n;
            for (int i = 0; i < n; i++) {
                dw[i] += turned[i] * row[i] * k;
                dx[i] = k * (turned[i] * w[i] - row[i] * inner);
            }
        }
    }
}

void geglu_forward(const float *x, float *y, long rows, int n) {
    for (long r = 0; r < rows; r++, x += 2 * n, y += n)
        for (int i = 0; i < n; i++) {
            float a = x[i];
            y[i] = a * x[i + n] * gate_of(a);
        }
}

void geglu_backward(const float *g, const float *x, float *dx, long rows, int n) {
    for (long r = 0; r < rows; r++, x += 2 * n, dx += 2 * n, g += n)
        for (int i = 0; i < n; i++) {
            float a = x[i], gate = gate_of(a);
            float slope = gate + a * gate * (1.0f - gate) * ROOT * (1.0f + 3.0f * CUBE * a * a);
            dx[i] = g[i] * x[i + n] * slope;
            dx[i + n] = g[i] * a * gate;
        }
}
