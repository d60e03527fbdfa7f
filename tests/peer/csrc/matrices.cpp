/* Eigen: products, inverses, singular values, eigenvalues. */
#include <Eigen/Dense>
#include <string>
#include <cstring>

/* Every function reads bytes and writes what it makes of them: its length, or -2 where there is no room. */
static long give(const void *data, long size, char *out, long room) {
    if (size > room) {
        return -2;
    }
    memcpy(out, data, size);
    return size;
}

using namespace Eigen;

static MatrixXd matrix_of(const char *in, long n) {
    const long size = 2 + n % 9;
    MatrixXd made(size, size);
    for (long i = 0; i < size * size; i++) {
        made.data()[i] = n ? (unsigned char)in[i % n] / 16.0 + i % 3 : i;
    }
    return made;
}

template <class T> static long give_all(const T &values, char *out, long room) {
    return give(values.data(), (long)(values.size() * sizeof(double)), out, room);
}

extern "C" long matrix_inverse(const char *in, long n, char *out, long room) {
    MatrixXd given = matrix_of(in, n);
    MatrixXd result = (given + MatrixXd::Identity(given.rows(), given.cols()) * 50).inverse();
    return give_all(result, out, room);
}

extern "C" long matrix_singular_values(const char *in, long n, char *out, long room) {
    VectorXd result = matrix_of(in, n).jacobiSvd().singularValues();
    return give_all(result, out, room);
}

extern "C" long matrix_product(const char *in, long n, char *out, long room) {
    MatrixXd given = matrix_of(in, n);
    MatrixXd result = given * given.transpose() * given;
    return give_all(result, out, room);
}

extern "C" long matrix_eigenvalues(const char *in, long n, char *out, long room) {
    MatrixXd given = matrix_of(in, n);
    VectorXd result = SelfAdjointEigenSolver<MatrixXd>(given + given.transpose()).eigenvalues();
    return give_all(result, out, room);
}
