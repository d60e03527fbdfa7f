/* FITPACK: curves through points that bytes give, their values, derivatives and integrals; surfaces. */
#include <math.h>
#include <string.h>

void curfit_(int *iopt, int *m, double *x, double *y, double *w, double *xb, double *xe, int *k, double *s, int *nest, int *n, double *t,
             double *c, double *fp, double *wrk, int *lwrk, int *iwrk, int *ier);
void splev_(double *t, int *n, double *c, int *nc, int *k, double *x, double *y, int *m, int *e, int *ier);
void splder_(double *t, int *n, double *c, int *nc, int *k, int *nu, double *x, double *y, int *m, int *e, double *wrk, int *ier);
double splint_(double *t, int *n, double *c, int *nc, int *k, double *a, double *b, double *wrk);
void sproot_(double *t, int *n, double *c, int *nc, double *zero, int *mest, int *m, int *ier);
void regrid_(int *iopt, int *mx, double *x, int *my, double *y, double *z, double *xb, double *xe, double *yb, double *ye, int *kx, int *ky,
             double *s, int *nxest, int *nyest, int *nx, double *tx, int *ny, double *ty, double *c, double *fp, double *wrk, int *lwrk, int *iwrk,
             int *kwrk, int *ier);
void bispev_(double *tx, int *nx, double *ty, int *ny, double *c, int *kx, int *ky, double *x, int *mx, double *y, int *my, double *z,
             double *wrk, int *lwrk, int *iwrk, int *kwrk, int *ier);

enum { MOST = 64, NEST = 80, WORK = 20000 };

static long give(const double *values, long count, char *out, long room) {
    if (count * 8 > room) {
        return -2;
    }
    memcpy(out, values, count * 8);
    return count * 8;
}

long curve(const unsigned char *in, long size, char *out, long room) {
    double x[MOST], y[MOST], w[MOST], t[NEST], c[NEST], work[WORK], values[4 * MOST] = {0}, at[MOST];
    int places[NEST], iopt = 0, k, m = 0, nest = NEST, n, lwrk = WORK, ier, e = 0, nu = 1, mest = MOST, roots = 0;
    if (size < 10) {
        return 0;
    }
    k = 1 + in[0] % 5;
    double s = in[1] / 64.0, last = 0, fp;
    for (long i = 2; i < size && m < MOST; i++, m++) {
        last += 0.1 + in[i] / 256.0;
        x[m] = last;
        y[m] = sin(in[i] * 0.37) * 3;
        w[m] = 1 + (in[i] % 3);
        at[m] = x[0] + (x[m] - x[0]) * 0.99;
    }
    curfit_(&iopt, &m, x, y, w, x, x + m - 1, &k, &s, &nest, &n, t, c, &fp, work, &lwrk, places, &ier);
    values[0] = ier;
    if (ier > 3) {
        return give(values, 1, out, room);
    }
    values[1] = n;
    values[2] = fp;
    splev_(t, &n, c, &n, &k, at, values + 3, &m, &e, &ier);
    splder_(t, &n, c, &n, &k, &nu, at, values + 3 + m, &m, &e, work, &ier);
    values[3 + 2 * m] = splint_(t, &n, c, &n, &k, x, x + m - 1, work);
    if (k == 3) {
        sproot_(t, &n, c, &n, values + 4 + 2 * m, &mest, &roots, &ier);
    }
    return give(values, 4 + 2 * m + roots, out, room);
}

long surface(const unsigned char *in, long size, char *out, long room) {
    static double work[WORK];
    double x[8], y[9], z[72], tx[NEST], ty[NEST], c[1000], at[5] = {0.1, 1.3, 2.5, 4.4, 6.9}, values[28], fp, first = 0, xe = 7, ye = 8;
    int places[200], iopt = 0, mx = 8, my = 9, kx = 3, ky = 3, nest = 30, nx, ny, lwrk = WORK, kwrk = 200, ier, five = 5;
    if (size < 73) {
        return 0;
    }
    for (int i = 0; i < 9; i++) {
        x[i % 8] = i % 8;
        y[i] = i;
    }
    for (int i = 0; i < 72; i++) {
        z[i] = cos(in[i] * 0.11) + in[i] / 100.0;
    }
    double s = in[72] / 20.0;
    regrid_(&iopt, &mx, x, &my, y, z, &first, &xe, &first, &ye, &kx, &ky, &s, &nest, &nest, &nx, tx, &ny, ty, c, &fp, work, &lwrk, places, &kwrk,
            &ier);
    values[0] = ier;
    values[1] = fp;
    if (ier > 3) {
        return give(values, 1, out, room);
    }
    values[2] = nx;
    bispev_(tx, &nx, ty, &ny, c, &kx, &ky, at, &five, at, &five, values + 3, work, &lwrk, places, &kwrk, &ier);
    return give(values, 28, out, room);
}
