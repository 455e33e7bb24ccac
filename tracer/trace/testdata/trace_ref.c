/*
 * C reference for the firmware trace decoder: correctness (verify) and speed.
 *
 *   trace_ref verify DIR             decode DIR/ring.bin, JSON lines to stdout
 *   trace_ref decode DIR [MB] [RUNS] decode with text, ring repeated to MB (256)
 *   trace_ref fast   DIR [MB] [RUNS] decode with text, formats parsed once (see below)
 *   trace_ref verify-fast DIR        verify with that decoder
 *   trace_ref count  DIR [MB] [RUNS] full time of each event and counts per id, no text
 *   trace_ref memcpy -   [MB] [RUNS] one-core memory bandwidth
 *
 * The decoder is the plain one a kernel driver would use: a table hashed by the
 * message number, one allocation per message, the format scanned for each
 * message, snprintf for the text, the text kept in a ring of 8192 x 256 bytes.
 * "fast" is the same with three changes: formats parsed once and kept by string
 * pointer, messages from a free list, own number conversion for the common forms.
 * Rules: the rulings on the tracer in docs/sources.md.
 *
 * cc -O2 -o trace_ref trace_ref.c
 */
#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define BLOCK 256
#define M53 ((1ULL << 53) - 1)
#define BUCKETS 64
#define MAXSEC 16
#define MAXWORDS 7
#define MAXNUM 512
#define SAVED 8192
#define SAVED_LEN 256

struct section { uint64_t base, size; char *data; };

static struct db {
	unsigned trc_ver, first, end;
	unsigned nsec;
	struct section sec[MAXSEC];
} db;

struct cfmt;

struct msg {
	const struct cfmt *cf;		/* fast mode */
	struct msg *hnext;		/* hash chain */
	struct msg *inext;		/* interval list */
	struct msg *rnext;		/* ready list */
	const char *fmt;		/* NULL: raw event */
	uint64_t raw, when;
	uint32_t word[MAXWORDS];
	uint32_t block;
	uint16_t tmsn;
	uint8_t eid, ts7, lost, need, have, events;
	uint8_t invalid, plain, timed, drop, dead, in_interval;
};

static struct counters {
	uint64_t blocks, events, messages, orphan_params, unknown_strings, raw_events, timestamps,
		unreliable_timestamps, string_events, lost_marks, incomplete_messages,
		unreliable_events_dropped, bad_formats, skipped_blocks;
} cnt;

static struct msg *table[BUCKETS];
static struct msg *interval;
static struct msg *ready, **ready_tail = &ready;
static int printing;
static char saved[SAVED][SAVED_LEN];
static uint64_t saved_time[SAVED];
static unsigned saved_idx;
static char *buf, *esc;
static size_t buf_cap;

/* ---- fast mode ---- */
static int fast;
static struct msg *spare;

struct op { const char *lit; uint32_t len; uint8_t kind, width; };

struct cfmt {
	struct cfmt *next;
	uint32_t ptr;
	const char *fmt;
	uint8_t need, invalid, plain, simple;
	unsigned nops;
	struct op *op;
};

#define CACHE 4096
static struct cfmt *cache[CACHE];

static uint64_t be64(const unsigned char *p)
{
	uint64_t v;

	memcpy(&v, p, 8);
	return __builtin_bswap64(v);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void die(const char *what)
{
	perror(what);
	exit(2);
}

static char *slurp(const char *dir, const char *name, size_t *len)
{
	char path[4096];
	FILE *f;
	char *p;
	long n;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "rb");
	if (!f)
		die(path);
	fseek(f, 0, SEEK_END);
	n = ftell(f);
	rewind(f);
	p = malloc(n + 1);
	if (!p || fread(p, 1, n, f) != (size_t)n)
		die(path);
	fclose(f);
	p[n] = 0;			/* also ends a string that lacks its NUL */
	*len = n;
	return p;
}

static unsigned json_uint(const char *j, const char *key)
{
	const char *p = strstr(j, key);

	if (!p || !(p = strchr(p, ':'))) {
		fprintf(stderr, "stringdb.json: no %s\n", key);
		exit(2);
	}
	return strtoul(p + 1, NULL, 0);
}

static void load_db(const char *dir)
{
	size_t n;
	char *j = slurp(dir, "stringdb.json", &n), *p = j, name[256];

	db.trc_ver = json_uint(j, "\"trc_ver\"");
	db.first = json_uint(j, "\"first_string_trace\"");
	db.end = db.first + json_uint(j, "\"num_string_trace\"");
	while ((p = strstr(p, "\"base\""))) {
		struct section *s = &db.sec[db.nsec++];
		char *q;

		if (db.nsec > MAXSEC)
			exit(2);
		p = strchr(p + 6, '"') + 1;
		s->base = strtoull(p, NULL, 16);
		p = strstr(p, "\"file\"");
		p = strchr(p + 6, '"') + 1;
		q = strchr(p, '"');
		snprintf(name, sizeof(name), "%.*s", (int)(q - p), p);
		s->data = slurp(dir, name, &n);
		s->size = n;
	}
	free(j);
}

/* One conversion after '%'.  Returns the end of it; 0 length of conv: string ended. */
struct spec { int words, ok, ell; char conv; };

static const char *parse_spec(const char *p, struct spec *s)
{
	unsigned width = 0, prec = 0;

	while (*p && strchr("-+ #0", *p))
		p++;
	while (isdigit((unsigned char)*p)) {
		width = width > 99999 ? width : width * 10 + (*p - '0');
		p++;
	}
	if (*p == '.') {
		p++;
		while (isdigit((unsigned char)*p)) {
			prec = prec > 99999 ? prec : prec * 10 + (*p - '0');
			p++;
		}
	}
	s->ell = 0;
	while (*p == 'l' && s->ell < 2) {
		s->ell++;
		p++;
	}
	s->conv = *p;
	if (!*p) {
		s->words = s->ok = 0;
		return p;
	}
	s->words = s->ell == 2 ? 2 : 1;
	s->ok = strchr("xXdiuc", *p) && width <= MAXNUM && prec <= MAXNUM &&
		!(*p == 'c' && s->words == 2);
	return p + 1;
}

static void scan_format(struct msg *m)
{
	const char *p = m->fmt;
	unsigned words = 0;
	struct spec s;

	m->plain = 1;
	while ((p = strchr(p, '%'))) {
		if (p[1] == '%') {
			p += 2;
			continue;
		}
		p = parse_spec(p + 1, &s);
		words += s.words;
		if (!s.ok)
			m->invalid = 1;
		if (s.ell)
			m->plain = 0;
	}
	if (words > MAXWORDS) {
		words = MAXWORDS;
		m->invalid = 1;
	}
	m->need = words;
}

static void room(size_t n)
{
	if (n <= buf_cap)
		return;
	buf_cap = n * 2;
	buf = realloc(buf, buf_cap);
	esc = realloc(esc, buf_cap * 4 + 32);
	if (!buf || !esc)
		die("memory");
}

static size_t format_each(const struct msg *m)
{
	const char *p = m->fmt, *q;
	const uint32_t *w = m->word;
	char one[64];
	size_t n = 0;
	struct spec s;

	while (*p) {
		if (*p != '%') {
			buf[n++] = *p++;
			continue;
		}
		if (p[1] == '%') {
			buf[n++] = '%';
			p += 2;
			continue;
		}
		q = parse_spec(p + 1, &s);
		snprintf(one, sizeof(one), "%.*s%s%c", (int)(q - p - 1 - s.ell), p,
			 s.words == 2 ? "ll" : "", s.conv);
		if (s.words == 2) {
			n += snprintf(buf + n, buf_cap - n, one,
				      (unsigned long long)w[0] << 32 | w[1]);
			w += 2;
		} else {
			n += snprintf(buf + n, buf_cap - n, one, *w++);
		}
		p = q;
	}
	return n;
}

static size_t escape(const char *s, size_t n, char *out)
{
	static const char hex[] = "0123456789abcdef";
	size_t o = 0, i = 0;

	while (i < n && s[i] >= 0x20 && s[i] <= 0x7e && s[i] != '\\')
		i++;
	memcpy(out, s, i);
	for (o = i; i < n; i++) {
		unsigned char c = s[i];

		if (c >= 0x20 && c <= 0x7e && c != '\\') {
			out[o++] = c;
			continue;
		}
		out[o++] = '\\';
		switch (c) {
		case '\\': out[o++] = '\\'; break;
		case '\n': out[o++] = 'n'; break;
		case '\r': out[o++] = 'r'; break;
		case '\t': out[o++] = 't'; break;
		default:
			out[o++] = 'x';
			out[o++] = hex[c >> 4];
			out[o++] = hex[c & 15];
		}
	}
	return o;
}

static size_t message_text(const struct msg *m)
{
	size_t n;

	if (!m->fmt)
		return sprintf(esc, "0x%08x%08x", (uint32_t)(m->raw >> 32), (uint32_t)m->raw);
	room(strlen(m->fmt) + MAXWORDS * (MAXNUM + 32) + 64);
	if (m->invalid) {
		memcpy(esc, "BAD_FORMAT: ", 12);
		return 12 + escape(m->fmt, strlen(m->fmt), esc + 12);
	}
	if (m->plain)
		n = snprintf(buf, buf_cap, m->fmt, m->word[0], m->word[1], m->word[2],
			     m->word[3], m->word[4], m->word[5], m->word[6]);
	else
		n = format_each(m);
	while (n && (buf[n - 1] == '\n' || buf[n - 1] == '\r'))
		n--;
	return escape(buf, n, esc);
}

static void add_lit(struct cfmt *f, char *lit, size_t n)
{
	char *e = malloc(n * 4 + 16);
	struct op *o = &f->op[f->nops];

	if (!e)
		die("memory");
	o->kind = 0;
	o->len = f->invalid ? n : escape(lit, n, e);
	if (f->invalid)
		memcpy(e, lit, n);
	o->lit = e;
	f->nops += o->len != 0;
}

static struct cfmt *compile(uint32_t ptr, const char *fmt)
{
	struct cfmt *f = calloc(1, sizeof(*f));
	size_t len = strlen(fmt), n = 0;
	char *lit = malloc(len * 4 + 32);
	struct msg m = { .fmt = fmt };
	const char *p, *q;
	struct spec s;

	if (!f || !lit)
		die("memory");
	scan_format(&m);
	f->ptr = ptr;
	f->fmt = fmt;
	f->need = m.need;
	f->invalid = m.invalid;
	f->plain = m.plain;
	f->simple = 1;
	f->op = calloc(2 * MAXWORDS + 2, sizeof(*f->op));
	if (f->invalid) {
		memcpy(lit, "BAD_FORMAT: ", 12);
		n = 12 + escape(fmt, len, lit + 12);
		add_lit(f, lit, n);
		free(lit);
		return f;
	}
	for (p = fmt; *p; ) {
		struct op o = { 0 };

		if (*p != '%' || p[1] == '%') {
			lit[n++] = *p;
			p += 1 + (*p == '%');
			continue;
		}
		q = parse_spec(p + 1, &s);
		add_lit(f, lit, n);
		n = 0;
		if (q - p - 2 - s.ell == 0)
			o.kind = s.conv == 'i' ? 'd' : s.conv;
		else if (q - p - 2 - s.ell == 2 && p[1] == '0' && p[2] != '0' && isdigit(p[2]) &&
			 s.conv == 'x')
			o.kind = 'x', o.width = p[2] - '0';
		else if (q - p - 2 - s.ell == 1 && p[1] == '#' && s.conv == 'x')
			o.kind = '#';
		else
			f->simple = 0;
		o.len = s.words;
		f->op[f->nops++] = o;
		p = q;
		if (o.kind == 'c' && !p[strspn(p, "\r\n")])
			f->simple = 0;		/* the value itself may be a line end to remove */
	}
	while (n && (lit[n - 1] == '\n' || lit[n - 1] == '\r'))
		n--;
	add_lit(f, lit, n);
	free(lit);
	return f;
}

static struct cfmt *lookup(uint32_t ptr)
{
	struct cfmt **p = &cache[(ptr ^ ptr >> 12) % CACHE];
	unsigned i;

	for (; *p; p = &(*p)->next)
		if ((*p)->ptr == ptr)
			return *p;
	for (i = 0; i < db.nsec; i++)
		if (ptr >= db.sec[i].base && ptr < db.sec[i].base + db.sec[i].size)
			return *p = compile(ptr, db.sec[i].data + (ptr - db.sec[i].base));
	return NULL;
}

static char *put_dec(char *o, uint64_t v)
{
	char t[20];
	int i = 20;

	do {
		t[--i] = '0' + v % 10;
		v /= 10;
	} while (v);
	memcpy(o, t + i, 20 - i);
	return o + 20 - i;
}

static char *put_hex(char *o, uint64_t v, unsigned width, const char *digits)
{
	unsigned n = v ? (67 - __builtin_clzll(v)) / 4 : 1;
	int i;

	if (n < width)
		n = width;
	for (i = n - 1; i >= 0; i--) {
		o[i] = digits[v & 15];
		v >>= 4;
	}
	return o + n;
}

static size_t fast_text(const struct msg *m)
{
	static const char lower[] = "0123456789abcdef", upper[] = "0123456789ABCDEF";
	const struct cfmt *f = m->cf;
	const uint32_t *w = m->word;
	char *o = esc, c;
	unsigned i;

	if (!m->fmt) {
		memcpy(o, "0x", 2);
		return put_hex(o + 2, m->raw, 16, lower) - esc;
	}
	if (!f->simple)
		return message_text(m);
	room(strlen(f->fmt) + 1024);
	o = esc;
	for (i = 0; i < f->nops; i++) {
		const struct op *p = &f->op[i];
		uint64_t v;

		if (!p->kind) {
			memcpy(o, p->lit, p->len);
			o += p->len;
			continue;
		}
		v = *w++;
		if (p->len == 2)
			v = v << 32 | *w++;
		switch (p->kind) {
		case 'd': {
			int64_t d = p->len == 2 ? (int64_t)v : (int32_t)v;

			if (d < 0)
				*o++ = '-';
			o = put_dec(o, d < 0 ? -(uint64_t)d : (uint64_t)d);
			break;
		}
		case 'u': o = put_dec(o, v); break;
		case 'x': o = put_hex(o, v, p->width, lower); break;
		case 'X': o = put_hex(o, v, 0, upper); break;
		case '#':
			if (v) {
				memcpy(o, "0x", 2);
				o += 2;
			}
			o = put_hex(o, v, 0, lower);
			break;
		case 'c':
			c = v;
			o += escape(&c, 1, o);
			break;
		}
	}
	return o - esc;
}

static void emit(const struct msg *m)
{
	size_t n = fast ? fast_text(m) : message_text(m), i;

	cnt.messages++;
	cnt.bad_formats += m->invalid;
	if (!printing) {
		if (n > SAVED_LEN - 1)
			n = SAVED_LEN - 1;
		memcpy(saved[saved_idx], esc, n);
		saved[saved_idx][n] = 0;
		saved_time[saved_idx] = m->when;
		saved_idx = (saved_idx + 1) & (SAVED - 1);
		return;
	}
	printf("{\"block\":%u,\"timestamp\":%llu,\"event_id\":%u,\"lost\":%s,%s\"text\":\"",
	       m->block, (unsigned long long)m->when, m->eid, m->lost ? "true" : "false",
	       m->invalid ? "\"invalid\":true," : "");
	for (i = 0; i < n; i++) {
		if (esc[i] == '"' || esc[i] == '\\')
			putchar('\\');
		putchar(esc[i]);
	}
	printf("\"}\n");
}

static struct msg **find(unsigned eid, unsigned tmsn)
{
	struct msg **p = &table[tmsn % BUCKETS];

	while (*p && ((*p)->eid != eid || (*p)->tmsn != tmsn))
		p = &(*p)->hnext;
	return p;
}

static void release(struct msg *m)
{
	if (!fast) {
		free(m);
		return;
	}
	m->hnext = spare;
	spare = m;
}

static void give_up(struct msg **p)
{
	struct msg *m = *p;

	if (!m)
		return;
	*p = m->hnext;
	cnt.incomplete_messages++;
	if (m->in_interval)
		m->dead = 1;		/* freed at the next timestamp event */
	else
		release(m);
}

static struct msg *new_msg(uint32_t block, uint64_t w)
{
	struct msg *m;

	if (fast && spare) {
		m = spare;
		spare = m->hnext;
		memset(m, 0, sizeof(*m));
	} else if (!(m = calloc(1, sizeof(*m)))) {
		die("memory");
	}
	m->block = block;
	m->raw = w;
	m->eid = w >> 48;
	m->ts7 = w >> 56 & 0x7f;
	m->lost = w >> 63;
	m->tmsn = w >> 35 & 0x1fff;
	m->events = 1;
	m->in_interval = 1;
	m->inext = interval;
	interval = m;
	return m;
}

static void make_ready(struct msg *m)
{
	m->rnext = NULL;
	*ready_tail = m;
	ready_tail = &m->rnext;
}

static void string_event(uint32_t block, uint64_t w)
{
	unsigned eid = w >> 48 & 0xff, tmsn = w >> 35 & 0x1fff, tdsn = w >> 32 & 7, i;
	uint32_t val = (uint32_t)w;
	struct msg **p = find(eid, tmsn), *m;

	cnt.string_events++;
	if (tdsn == 0) {
		give_up(p);
		m = new_msg(block, w);
		if (fast) {
			m->cf = lookup(val);
			if (!m->cf) {
				cnt.unknown_strings++;
				make_ready(m);
				return;
			}
			m->fmt = m->cf->fmt;
			m->need = m->cf->need;
			m->invalid = m->cf->invalid;
			m->plain = m->cf->plain;
			goto found;
		}
		for (i = 0; i < db.nsec; i++)
			if (val >= db.sec[i].base && val < db.sec[i].base + db.sec[i].size)
				break;
		if (i == db.nsec) {
			cnt.unknown_strings++;
			make_ready(m);
			return;
		}
		m->fmt = db.sec[i].data + (val - db.sec[i].base);
		scan_format(m);
found:
		if (m->need) {
			m->hnext = table[tmsn % BUCKETS];
			table[tmsn % BUCKETS] = m;
		} else {
			make_ready(m);
		}
		return;
	}
	m = *p;
	if (m && (tdsn > m->need || m->have >> tdsn & 1)) {
		give_up(p);
		m = NULL;
	}
	if (!m) {
		cnt.orphan_params++;
		make_ready(new_msg(block, w));
		return;
	}
	m->word[tdsn - 1] = val;
	m->have |= 1 << tdsn;
	m->events++;
	m->lost |= w >> 63;
	if (m->events == m->need + 1) {
		*p = m->hnext;
		make_ready(m);
	}
}

static uint64_t full_time(uint64_t w)
{
	return (w >> 32 & 0x1fff) << 40 | (w & 0xffffffff) << 8 | w >> 56;
}

static int unreliable(uint64_t w)
{
	unsigned u = w >> 45 & 7;

	return db.trc_ver == 0 ? u >> 2 : db.trc_ver == 1 ? u & 1 : u != 0;
}

static void timestamp_event(uint64_t w)
{
	uint64_t t = full_time(w);
	int bad = unreliable(w);
	struct msg *m, *n;

	cnt.timestamps++;
	cnt.unreliable_timestamps += bad;
	for (m = interval; m; m = n) {
		n = m->inext;
		m->in_interval = 0;
		if (m->dead) {
			release(m);
			continue;
		}
		m->drop = bad;
		m->when = (((t >> 7) - (m->ts7 >= (t & 0x7f))) << 7 | m->ts7) & M53;
	}
	interval = NULL;
	for (m = ready; m; m = n) {
		n = m->rnext;
		if (m->drop)
			cnt.unreliable_events_dropped += m->events;
		else
			emit(m);
		release(m);
	}
	ready = NULL;
	ready_tail = &ready;
}

static void decode_block(uint32_t idx, const unsigned char *p)
{
	int i;

	cnt.blocks++;
	cnt.events += 32;
	for (i = 0; i < 32; i++, p += 8) {
		uint64_t w = be64(p);
		unsigned eid = w >> 48 & 0xff;

		if (eid == 0xff) {
			timestamp_event(w);
			continue;
		}
		cnt.lost_marks += w >> 63;
		if (eid >= db.first && eid < db.end)
			string_event(idx, w);
		else
			cnt.raw_events++;
	}
}

static int closed(const unsigned char *b)
{
	return b[BLOCK - 8 + 1] == 0xff;
}

static size_t oldest(const unsigned char *ring, size_t n)
{
	uint64_t prev = 0, t;
	int have = 0;
	size_t i;

	for (i = 0; i < n; i++) {
		if (!closed(ring + i * BLOCK))
			continue;
		t = full_time(be64(ring + i * BLOCK + BLOCK - 8));
		if (have && ((t - prev) & M53) >= 1ULL << 52)
			return i;
		have = 1;
		prev = t;
	}
	return 0;
}

static void verify(const unsigned char *ring, size_t n)
{
	size_t s = oldest(ring, n), i, k;
	unsigned b;

	printing = 1;
	for (i = 0; i < n; i++) {
		k = (s + i) % n;
		if (closed(ring + k * BLOCK))
			decode_block(k, ring + k * BLOCK);
		else
			cnt.skipped_blocks++;
	}
	for (b = 0; b < BUCKETS; b++)
		while (table[b])
			give_up(&table[b]);
#define C(f) "\"" #f "\":%llu,"
#define V(f) (unsigned long long)cnt.f
	printf("{\"summary\":{" C(blocks) C(events) C(messages) C(orphan_params)
	       C(unknown_strings) C(raw_events) C(timestamps) C(unreliable_timestamps)
	       C(string_events) C(lost_marks) C(incomplete_messages)
	       C(unreliable_events_dropped) C(bad_formats) "\"skipped_blocks\":%llu}}\n",
	       V(blocks), V(events), V(messages), V(orphan_params), V(unknown_strings),
	       V(raw_events), V(timestamps), V(unreliable_timestamps), V(string_events),
	       V(lost_marks), V(incomplete_messages), V(unreliable_events_dropped),
	       V(bad_formats), V(skipped_blocks));
}

static int cmp(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void report(const char *name, double *t, int runs, double bytes, double events)
{
	double m;

	qsort(t, runs, sizeof(*t), cmp);
	m = t[runs / 2];
	printf("%s: median %.1f MB/s (range %.1f..%.1f, %d runs of %.0f MB)", name, bytes / m / 1e6,
	       bytes / t[runs - 1] / 1e6, bytes / t[0] / 1e6, runs, bytes / 1e6);
	if (events)
		printf(", %.2f ns/event (%.2f..%.2f)", m / events * 1e9, t[0] / events * 1e9,
		       t[runs - 1] / events * 1e9);
	printf("\n");
}

static uint64_t count_sum, count_id[256];

/* Time of each event, count per id, no text. */
static void count_only(const unsigned char *p, size_t bytes)
{
	unsigned char stamp[4096];
	const unsigned char *e = p + bytes;
	unsigned n = 0, i;
	uint64_t sum = 0;

	for (; p < e; p += 8) {
		uint64_t w = be64(p);
		unsigned eid = w >> 48 & 0xff;

		count_id[eid]++;
		if (eid != 0xff) {
			stamp[n++ & 4095] = w >> 56 & 0x7f;
			continue;
		}
		if (!unreliable(w)) {
			uint64_t t = full_time(w), epoch = t >> 7, low = t & 0x7f;

			for (i = 0; i < n; i++)
				sum += ((epoch - (stamp[i] >= low)) << 7 | stamp[i]) & M53;
		}
		n = 0;
	}
	count_sum += sum;
}

int main(int argc, char **argv)
{
	size_t len, n, total, mb, i;
	unsigned char *ring, *mem;
	double t[64], t0;
	int runs, r;

	if (argc < 3) {
		fprintf(stderr, "usage: trace_ref verify|verify-fast|decode|fast|count|memcpy DIR [MB] [RUNS]\n");
		return 2;
	}
	mb = argc > 3 ? strtoul(argv[3], NULL, 0) : 256;
	runs = argc > 4 ? atoi(argv[4]) : 7;
	if (runs < 1 || runs > 64 || !mb)
		return 2;
	room(65536);
	if (!strcmp(argv[1], "memcpy")) {
		unsigned char *dst;
		uint64_t x = 0;

		total = mb << 20;
		mem = malloc(total);
		dst = malloc(total);
		if (!mem || !dst)
			die("memory");
		memset(mem, 1, total);
		memset(dst, 2, total);
		for (r = 0; r < runs; r++) {
			t0 = now();
			memcpy(dst, mem, total);
			t[r] = now() - t0;
			__asm__ volatile("" : : "r"(dst) : "memory");
		}
		report("memcpy (bytes copied)", t, runs, total, 0);
		for (r = 0; r < runs; r++) {
			const uint64_t *p = (const uint64_t *)mem;
			uint64_t a = 0, b = 0, c = 0, d = 0;

			t0 = now();
			for (i = 0; i < total / 8; i += 4) {
				a += p[i];
				b ^= p[i + 1];
				c += p[i + 2];
				d ^= p[i + 3];
			}
			x += a + b + c + d;
			__asm__ volatile("" : : "r"(x));
			t[r] = now() - t0;
		}
		report("read (8-byte loads)", t, runs, total, 0);
		return 0;
	}
	ring = (unsigned char *)slurp(argv[2], "ring.bin", &len);
	if (!len || len % BLOCK) {
		fprintf(stderr, "ring.bin: bad size\n");
		return 2;
	}
	n = len / BLOCK;
	load_db(argv[2]);
	fast = !strcmp(argv[1], "fast") || !strcmp(argv[1], "verify-fast");
	if (!strncmp(argv[1], "verify", 6)) {
		verify(ring, n);
		return 0;
	}
	total = ((mb << 20) / len) * len;
	if (!total)
		total = len;
	mem = malloc(total);
	if (!mem)
		die("memory");
	for (i = 0; i < total; i += len)
		memcpy(mem + i, ring, len);
	for (r = 0; r < runs; r++) {
		t0 = now();
		if (!strcmp(argv[1], "decode") || fast)
			for (i = 0; i < total / BLOCK; i++)
				decode_block(i, mem + i * BLOCK);
		else if (!strcmp(argv[1], "count"))
			count_only(mem, total);
		else
			return 2;
		t[r] = now() - t0;
	}
	report(argv[1], t, runs, total, total / 8);
	if (cnt.messages)
		printf("messages per run %llu, %.1f ns per message by the median\n",
		       (unsigned long long)(cnt.messages / runs),
		       t[runs / 2] / (cnt.messages / (double)runs) * 1e9);
	else
		printf("time sum %llx, timestamp events per run %llu\n",
		       (unsigned long long)count_sum, (unsigned long long)(count_id[255] / runs));
	return 0;
}
