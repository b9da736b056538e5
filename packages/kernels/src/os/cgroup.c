/* Linux: the limits that control groups, of version 1 and 2, set on CPU time. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "os/os.h"

enum { LINE = 3 * PATH_MAX, MOUNT_FIELDS = 5 };

/* Reads one line without its end; returns false after the last one. A longer line is cut. */
static bool read_line(FILE *file, char line[LINE]) {
    if (!fgets(line, LINE, file))
        return false;
    const size_t length = strcspn(line, "\n");
    for (int c = line[length] == '\n' ? '\n' : 0; c != '\n' && c != EOF;)
        c = fgetc(file);
    line[length] = '\0';
    return true;
}

static FILE *open_at(const char *root, const char *path) {
    char whole[2 * PATH_MAX];
    const int length = snprintf(whole, sizeof whole, "%s%s", root, path);
    return length > 0 && (size_t)length < sizeof whole ? fopen(whole, "re") : NULL;
}

/* Returns whether a list with commas has the word "cpu". */
static bool lists_cpu(const char *list) {
    for (const char *word = list; *word; word += word[0] == ',') {
        const size_t length = strcspn(word, ",");
        if (length == 3 && memcmp(word, "cpu", length) == 0)
            return true;
        word += length;
    }
    return false;
}

/* Undoes the escapes of /proc/self/mountinfo: a space is "\040". */
static void unescape(char *text) {
    char *to = text;
    for (const char *from = text; *from; to++) {
        const bool escape = from[0] == '\\' && strspn(from + 1, "01234567") >= 3;
        *to =
            escape ? (char)((from[1] - '0') << 6 | (from[2] - '0') << 3 | (from[3] - '0')) : *from;
        from += escape ? 4 : 1;
    }
    *to = '\0';
}

/* Finds the process's group in the hierarchy of version 2, or in that of version 1 that has the
 * CPU controller. A line of /proc/self/cgroup: number:controllers:group, the number of version 2
 * is 0. */
static bool find_group(const char *root, int version, char group[PATH_MAX]) {
    char line[LINE];
    bool found = false;
    FILE *file = open_at(root, "/proc/self/cgroup");
    while (file && !found && read_line(file, line)) {
        char *controllers = strchr(line, ':'),
             *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path)
            continue;
        *controllers++ = *path++ = '\0';
        found = version == 2 ? strcmp(line, "0") == 0 && !*controllers : lists_cpu(controllers);
        found = found && strlen(path) < PATH_MAX;
        if (found)
            strcpy(group, path);
    }
    if (file)
        fclose(file);
    return found;
}

/* Returns what of the group's path comes after that of a mount's root; NULL where the group is not
 * below that. */
static const char *below(const char *group, const char *root) {
    /* a mount from outside of the cgroup namespace, of a group that contains the namespace's */
    if (strspn(root, "/.") == strlen(root) && root[1])
        return "";
    const size_t length = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(group, root, length) != 0 || (group[length] && group[length] != '/'))
        return NULL;
    const char *rest = group + length;
    return strncmp(rest, "/..", 3) == 0 ? NULL : strcmp(rest, "/") == 0 ? "" : rest;
}

/* Reads up to two numbers; returns how many there are. */
static int read_numbers(const char *root, const char *folder, const char *name, long long n[2]) {
    char path[2 * PATH_MAX];
    FILE *file =
        snprintf(path, sizeof path, "%s/%s", folder, name) < PATH_MAX ? open_at(root, path) : NULL;
    const int count = file ? fscanf(file, "%lld %lld", &n[0], &n[1]) : 0;
    if (file)
        fclose(file);
    return count;
}

/* The lowest limit so far. */
typedef struct lowest {
    double cpus; /* 0: none */
    char *file;  /* [bytes] */
    size_t bytes;
} lowest;

/* Takes the limit of one group, where it is lower. */
static void take_limit(const char *root, int version, const char *folder, lowest *limit) {
    long long n[2]; /* quota, period: "max 100000" or -1 where there is no limit */
    const char *name = version == 2 ? "cpu.max" : "cpu.cfs_quota_us";
    if (version == 2) {
        if (read_numbers(root, folder, name, n) != 2)
            return;
    } else {
        long long period[2];
        if (read_numbers(root, folder, name, n) < 1 ||
            read_numbers(root, folder, "cpu.cfs_period_us", period) < 1)
            return;
        n[1] = period[0];
    }
    if (n[0] <= 0 || n[1] <= 0)
        return;
    const double cpus = (double)n[0] / (double)n[1];
    if (limit->cpus == 0 || cpus < limit->cpus) {
        limit->cpus = cpus;
        snprintf(limit->file, limit->bytes, "%s/%s", folder, name);
    }
}

/* Takes the lowest limit of the process's group and those that contain it, as far as a mount shows
 * them. A line of mountinfo: id parent device root folder options ... - type source options. */
static void take_limits(const char *root, char *line, lowest *limit) {
    char *fields[MOUNT_FIELDS], *kind = strstr(line, " - "), *next = NULL;
    if (!kind)
        return;
    *kind = '\0';
    const char *type = strtok_r(kind + 3, " ", &next), *source = strtok_r(NULL, " ", &next),
               *options = strtok_r(NULL, " ", &next);
    if (!type || !source)
        return;
    const int version = strcmp(type, "cgroup2") == 0                                   ? 2
                        : strcmp(type, "cgroup") == 0 && options && lists_cpu(options) ? 1
                                                                                       : 0;
    int count = 0;
    for (char *at = line; count < MOUNT_FIELDS && (at = strtok_r(at, " ", &next)); at = NULL)
        fields[count++] = at;
    if (version == 0 || count < MOUNT_FIELDS)
        return;
    unescape(fields[3]);
    unescape(fields[4]);
    char group[PATH_MAX], folder[2 * PATH_MAX];
    const char *rest = find_group(root, version, group) ? below(group, fields[3]) : NULL;
    const size_t mount = strlen(fields[4]);
    if (!rest || mount + strlen(rest) >= PATH_MAX)
        return;
    strcpy(folder, fields[4]);
    strcpy(folder + mount, rest);
    for (size_t length = strlen(folder);;) {
        take_limit(root, version, folder, limit);
        while (length > mount && folder[length] != '/')
            length--;
        if (length <= mount && !folder[mount])
            return;
        folder[length] = '\0';
    }
}

double taper_os_cpu_limit(const char *root, char *file, size_t bytes) {
    char line[LINE];
    lowest limit = {0, file, bytes};
    FILE *mounts = open_at(root, "/proc/self/mountinfo");
    while (mounts && read_line(mounts, line))
        take_limits(root, line, &limit);
    if (mounts)
        fclose(mounts);
    return limit.cpus;
}
