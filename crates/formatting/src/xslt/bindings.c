/* Bindings of libxslt for parts that Rust cannot call: struct fields and variadic functions.
 *
 * All operations are bounded. Nothing reads or writes a file or the network: the loaders serve only the given sources,
 * and all five security preferences of libxslt forbid the rest. State is per thread, so any number of threads may use
 * one stylesheet. */

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <libxml/parser.h>
#include <libxml/xmlIO.h>
#include <libxml/xmlmemory.h>
#include <libxml/xpath.h>
#include <libxslt/documents.h>
#include <libxslt/imports.h>
#include <libxslt/security.h>
#include <libxslt/transform.h>
#include <libxslt/variables.h>
#include <libxslt/xslt.h>
#include <libxslt/xsltInternals.h>
#include <libxslt/xsltutils.h>

/* A source that stylesheets can import, by name. */
struct tocsin_source {
  const char *name;
  const char *text;
  int length;
};

struct tocsin_limits {
  unsigned long steps;       /* XSLT instructions */
  unsigned long xpath_steps; /* XPath operations */
  long bytes;                /* memory allocated since the start */
  long milliseconds;
  int depth; /* nested templates */
};

/* The reason for stopping a transformation. */
enum { STOPPED_NOT, STOPPED_BYTES, STOPPED_TIME };

static __thread struct {
  const struct tocsin_source *sources;
  int source_count;
  xsltTransformContextPtr context;
  long used, bytes_max;
  long bytes_bound; /* the process exits at this limit; 0: none */
  long bytes_live;  /* allocated and not freed on this thread since the last query */
  long deadline; /* in milliseconds of this thread's processor time; 0: none */
  unsigned ticks;
  int stopped;
  char said[4096];
  size_t said_length;
} here;

static xsltSecurityPrefsPtr preferences;

/* A reading of the processor time of this thread is used for so long, by the clock. */
enum { READING_MILLISECONDS = 5 };

/* Processor time of this thread, at most READING_MILLISECONDS too little: on a busy machine the clock says nothing of a
 * stylesheet. Unlike the processor time, the clock is read without a system call. */
static long now_milliseconds(void) {
  static __thread long read_at, reading = -1;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  long clock = now.tv_sec * 1000 + now.tv_nsec / 1000000;
  if (reading < 0 || clock - read_at >= READING_MILLISECONDS) {
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    reading = now.tv_sec * 1000 + now.tv_nsec / 1000000;
    read_at = clock;
  }
  return reading;
}

/* The engine looks at both before its next step. */
static void stop(int why) {
  if (here.stopped != STOPPED_NOT || here.context == NULL)
    return;
  here.stopped = why;
  here.context->state = XSLT_STATE_STOPPED;
  if (here.context->xpathCtxt != NULL && here.context->xpathCtxt->opLimit != 0)
    here.context->xpathCtxt->opCount = here.context->xpathCtxt->opLimit;
}

/* The status with which a worker ends whose work needs too much memory; in engine.rs the same. */
enum { EXIT_MEMORY = 77 };

/* Before memory is asked for: most of the library does not survive it where there is none. */
static void check_bound(size_t bytes) {
  if (here.bytes_bound != 0 && here.bytes_live + (long)bytes > here.bytes_bound)
    _exit(EXIT_MEMORY);
}

/* Bounds what this thread allocates from now on; gives what it allocated and did not free since the last call. */
long tocsin_worker_bound(long bytes) {
  long before = here.bytes_live;
  here.bytes_live = 0;
  here.bytes_bound = bytes;
  return before;
}

static void account(long bytes) {
  here.bytes_live += bytes;
  if (here.context == NULL)
    return;
  here.used += bytes;
  if (here.used > here.bytes_max)
    stop(STOPPED_BYTES);
  if ((++here.ticks & 255) == 0 && here.deadline != 0 && now_milliseconds() > here.deadline)
    stop(STOPPED_TIME);
}

/* Small blocks of memory come from chunks and are kept in lists by size when they are freed: most blocks of a
 * transformation are small, and freed at its end. The size is stored before each block: counting needs no call. */
enum { BLOCK_STEP = 16, BLOCK_BYTES_MAX = 1024, CHUNK_BYTES = 256 << 10 };

struct block {
  size_t size; /* without this header */
  struct block *next;
};

static __thread struct {
  struct block *freed[BLOCK_BYTES_MAX / BLOCK_STEP + 1];
  char *unused, *end;
  long chunk_bytes;
} pool;

/* The bytes of all chunks; they are never returned. */
long tocsin_worker_pool(void) { return pool.chunk_bytes; }

static struct block *new_block(size_t size) {
  size_t whole = size + sizeof(struct block);
  if ((size_t)(pool.end - pool.unused) < whole) {
    char *chunk = malloc(CHUNK_BYTES);
    if (chunk == NULL)
      return NULL;
    pool.unused = chunk;
    pool.end = chunk + CHUNK_BYTES;
    pool.chunk_bytes += CHUNK_BYTES;
  }
  struct block *made = (struct block *)pool.unused;
  pool.unused += whole;
  return made;
}

static void *counted_malloc(size_t size) {
  check_bound(size);
  struct block *block;
  if (size > BLOCK_BYTES_MAX) {
    block = size > SIZE_MAX - sizeof *block ? NULL : malloc(size + sizeof *block);
  } else {
    size_t list = size == 0 ? 1 : (size + BLOCK_STEP - 1) / BLOCK_STEP;
    size = list * BLOCK_STEP;
    block = pool.freed[list];
    if (block != NULL)
      pool.freed[list] = block->next;
    else
      block = new_block(size);
  }
  if (block == NULL)
    return NULL;
  block->size = size;
  account((long)(size + sizeof *block));
  return block + 1;
}

static void counted_free(void *memory) {
  if (memory == NULL)
    return;
  struct block *block = (struct block *)memory - 1;
  long bytes = (long)(block->size + sizeof *block);
  here.bytes_live -= bytes;
  if (here.context != NULL)
    here.used -= bytes;
  if (block->size > BLOCK_BYTES_MAX) {
    free(block);
    return;
  }
  struct block **list = &pool.freed[block->size / BLOCK_STEP];
  block->next = *list;
  *list = block;
}

static void *counted_realloc(void *memory, size_t size) {
  if (memory == NULL)
    return counted_malloc(size);
  struct block *block = (struct block *)memory - 1;
  size_t before = block->size;
  if (size <= before && before <= BLOCK_BYTES_MAX)
    return memory;
  if (size > BLOCK_BYTES_MAX && before > BLOCK_BYTES_MAX) {
    check_bound(size > before ? size - before : 0);
    block = size > SIZE_MAX - sizeof *block ? NULL : realloc(block, size + sizeof *block);
    if (block == NULL)
      return NULL;
    block->size = size;
    account((long)size - (long)before);
    return block + 1;
  }
  void *made = counted_malloc(size);
  if (made != NULL) {
    memcpy(made, memory, size < before ? size : before);
    counted_free(memory);
  }
  return made;
}

static char *counted_strdup(const char *text) {
  size_t length = strlen(text) + 1;
  char *made = counted_malloc(length);
  if (made != NULL)
    memcpy(made, text, length);
  return made;
}

static void collect(void *context, const char *format, ...) {
  (void)context;
  size_t room = sizeof here.said - here.said_length;
  if (room < 2)
    return;
  /* Messages are reported without their position. */
  if (here.said_length == 0 && here.context != NULL && here.context->inst != NULL) {
    long line = xmlGetLineNo(here.context->inst);
    here.said_length = (size_t)snprintf(here.said, room, "message at line %ld\n", line);
    room = sizeof here.said - here.said_length;
  }
  va_list arguments;
  va_start(arguments, format);
  int requested = vsnprintf(here.said + here.said_length, room, format, arguments);
  va_end(arguments);
  if (requested > 0)
    here.said_length += (size_t)requested < room ? (size_t)requested : room - 1;
}

static const struct tocsin_source *find(const char *name) {
  for (int at = 0; name != NULL && at < here.source_count; at++)
    if (strcmp(here.sources[at].name, name) == 0)
      return &here.sources[at];
  return NULL;
}

static int may_read(xsltSecurityPrefsPtr sec, xsltTransformContextPtr context, const char *url) {
  (void)sec;
  /* A running stylesheet cannot read anything. */
  return context == NULL && find(url) != NULL;
}

static xmlDocPtr parse(const char *text, int length, const char *name, xmlDictPtr dictionary) {
  xmlParserCtxtPtr parser = xmlNewParserCtxt();
  if (parser == NULL)
    return NULL;
  if (dictionary != NULL) {
    if (parser->dict != NULL)
      xmlDictFree(parser->dict);
    parser->dict = dictionary;
    xmlDictReference(dictionary);
  }
  /* Entities are not replaced, DTDs are not loaded, default attributes are not added. */
  xmlDocPtr doc = xmlCtxtReadMemory(parser, text, length, name, "UTF-8", XML_PARSE_NONET | XML_PARSE_NOCDATA);
  xmlFreeParserCtxt(parser);
  return doc;
}

static xmlDocPtr load(const xmlChar *url, xmlDictPtr dictionary, int options, void *context, xsltLoadType type) {
  (void)options;
  (void)context;
  const struct tocsin_source *source = type == XSLT_LOAD_STYLESHEET ? find((const char *)url) : NULL;
  return source == NULL ? NULL : parse(source->text, source->length, source->name, dictionary);
}

static xmlParserInputPtr load_entity(const char *url, const char *id, xmlParserCtxtPtr parser) {
  (void)url;
  (void)id;
  (void)parser;
  return NULL;
}

void tocsin_xslt_init(void) {
  xmlMemSetup(counted_free, counted_malloc, counted_realloc, counted_strdup);
  xmlInitParser();
  xsltInit();
  xmlSetExternalEntityLoader(load_entity);
  xsltSetGenericErrorFunc(NULL, collect);
  xmlThrDefSetGenericErrorFunc(NULL, collect);
  xsltSetLoaderFunc(load);
  preferences = xsltNewSecurityPrefs();
  if (preferences == NULL)
    abort();
  xsltSetSecurityPrefs(preferences, XSLT_SECPREF_READ_FILE, may_read);
  xsltSetSecurityPrefs(preferences, XSLT_SECPREF_WRITE_FILE, xsltSecurityForbid);
  xsltSetSecurityPrefs(preferences, XSLT_SECPREF_CREATE_DIRECTORY, xsltSecurityForbid);
  xsltSetSecurityPrefs(preferences, XSLT_SECPREF_READ_NETWORK, xsltSecurityForbid);
  xsltSetSecurityPrefs(preferences, XSLT_SECPREF_WRITE_NETWORK, xsltSecurityForbid);
  xsltSetDefaultSecurityPrefs(preferences);
}

static void begin(const struct tocsin_source *sources, int count) {
  here.sources = sources;
  here.source_count = count;
  here.said_length = 0;
  here.said[0] = 0;
  here.stopped = STOPPED_NOT;
  xmlSetGenericErrorFunc(NULL, collect);
}

/* The last error message of this thread; valid until the next call. */
const char *tocsin_xslt_said(void) { return here.said; }

void tocsin_xslt_free(xsltStylesheetPtr style);

/* Compiles a stylesheet; NULL on error. `method` is the default output method for a part of a message; empty for a
 * whole document, whose declarations apply. */
xsltStylesheetPtr tocsin_xslt_compile(const char *text, int length, const char *name, const struct tocsin_source *sources,
                                      int count, const char *method) {
  begin(sources, count);
  xmlDocPtr doc = parse(text, length, name, NULL);
  xsltStylesheetPtr style = doc == NULL ? NULL : xsltParseStylesheetDoc(doc);
  if (style == NULL && doc != NULL)
    xmlFreeDoc(doc);
  here.sources = NULL;
  here.source_count = 0;
  if (style == NULL)
    return NULL;
  if (style->errors != 0) {
    tocsin_xslt_free(style);
    return NULL;
  }
  int has_method = 0;
  for (xsltStylesheetPtr each = style; each != NULL; each = xsltNextImport(each)) {
    has_method |= each->method != NULL;
    /* The library outputs UTF-8, which is re-encoded by the caller: the library supports few other encodings. */
    if (each->encoding != NULL) {
      if (style->_private == NULL)
        style->_private = xmlStrdup(each->encoding);
      xmlFree(each->encoding);
      each->encoding = xmlStrdup((const xmlChar *)"UTF-8");
    }
  }
  int is_document = method != NULL && *method == 0;
  if (is_document && style->_private == NULL)
    style->encoding = xmlStrdup((const xmlChar *)"UTF-8");
  /* An XML DOCTYPE needs a system identifier beside the public one (XSLT 1.0, section 16.1). */
  const xmlChar *own_method = NULL, *system = NULL;
  for (xsltStylesheetPtr each = style; each != NULL; each = xsltNextImport(each)) {
    own_method = own_method == NULL ? each->method : own_method;
    system = system == NULL ? each->doctypeSystem : system;
  }
  int is_html = own_method != NULL && xmlStrEqual(own_method, (const xmlChar *)"html");
  for (xsltStylesheetPtr each = style; each != NULL && system == NULL && !is_html; each = xsltNextImport(each)) {
    xmlFree(each->doctypePublic);
    each->doctypePublic = NULL;
  }
  if (method != NULL && !is_document && !has_method)
    style->method = xmlStrdup((const xmlChar *)method);
  if (method != NULL && !is_document)
    for (xsltStylesheetPtr each = style; each != NULL; each = xsltNextImport(each))
      each->omitXmlDeclaration = 1;
  return style;
}

void tocsin_xslt_free(xsltStylesheetPtr style) {
  if (style->_private != NULL)
    xmlFree(style->_private);
  xsltFreeStylesheet(style);
}

/* A declaration of xsl:output: 0 the method, 1 the encoding, 2 the media type. NULL if there is none. */
const char *tocsin_xslt_output(xsltStylesheetPtr style, int which) {
  if (which == 1)
    return (const char *)style->_private;
  for (xsltStylesheetPtr each = style; each != NULL; each = xsltNextImport(each)) {
    const xmlChar *found = which == 0 ? each->method : each->mediaType;
    if (found != NULL)
      return (const char *)found;
  }
  return NULL;
}

/* A transformation context that the next transformation of the same stylesheet on the same thread uses again. The
 * library makes one by registering some eighty functions and elements in hash tables, which is half of the time of a
 * small transformation. */
struct tocsin_context {
  xsltTransformContextPtr context;
  xsltTransformContext made; /* its fields before the first transformation */
  int names;                 /* in its dictionary, before the first transformation */
};

/* Most names that a reused context collects from documents; with more it is made again. */
enum { REUSED_NAMES_MAX = 2000 };

/* Whether the library's version is one whose contexts are known: clear_context frees and resets their fields. */
static int can_reuse(void) {
  return LIBXSLT_VERSION >= 10134 && LIBXSLT_VERSION <= 10143 && xsltLibxsltVersion >= 10134 &&
         xsltLibxsltVersion <= 10143;
}

/* Makes a context for a document; NULL without memory. */
static xsltTransformContextPtr make_context(xsltStylesheetPtr style, struct tocsin_context *reused, xmlDocPtr doc) {
  xsltTransformContextPtr context = reused == NULL ? NULL : reused->context;
  if (context != NULL) {
    xsltDocumentPtr document = xsltNewDocument(context, doc);
    if (document == NULL)
      return NULL;
    document->main = 1;
    context->document = document;
    context->xpathCtxt->doc = doc;
    return context;
  }
  context = xsltNewTransformContext(style, doc);
  if (context != NULL && reused != NULL) {
    reused->context = context;
    reused->made = *context;
    reused->names = xmlDictSize(context->dict);
  }
  return context;
}

/* Frees all that a finished transformation left in its context, as xsltFreeTransformContext does, and resets the
 * fields. Its tables of functions and elements, its caches of empty objects and its dictionary of names remain. Returns
 * 0 if the context cannot be reused. */
static int clear_context(struct tocsin_context *reused) {
  xsltTransformContextPtr context = reused->context;
  const xsltTransformContext *made = &reused->made;
  if (context->extFunctions != made->extFunctions || context->extElements != made->extElements ||
      context->extInfos != NULL || context->profTab != NULL || context->xpathCtxt->varHash != NULL ||
      xmlDictSize(context->dict) > reused->names + REUSED_NAMES_MAX)
    return 0;
  for (int at = 0; at < context->extrasNr && context->extras != NULL; at++) {
    xsltRuntimeExtraPtr extra = &context->extras[at];
    if (extra->deallocate != NULL && extra->info != NULL)
      extra->deallocate(extra->info);
    memset(extra, 0, sizeof *extra);
  }
  if (context->globalVars != NULL)
    xsltFreeGlobalVariables(context);
  xsltFreeDocuments(context);
  xsltFreeRVTs(context);
  xsltTransformContext before = *context;
  *context = *made;
  context->docList = context->styleList = context->document = NULL;
  context->templTab = before.templTab;
  context->templMax = before.templMax;
  context->varsTab = before.varsTab;
  context->varsMax = before.varsMax;
  context->extras = before.extras;
  context->extrasNr = before.extrasNr;
  context->extrasMax = before.extrasMax;
  xmlXPathContextPtr xpath = context->xpathCtxt;
  xmlResetError(&xpath->lastError);
  xpath->doc = NULL;
  xpath->node = xpath->here = xpath->origin = NULL;
  xpath->namespaces = NULL;
  xpath->nsNr = 0;
  xpath->opCount = 0;
  xpath->depth = 0;
  return 1;
}

struct tocsin_context *tocsin_xslt_context(void) {
  return can_reuse() ? calloc(1, sizeof(struct tocsin_context)) : NULL;
}

void tocsin_xslt_free_context(struct tocsin_context *reused) {
  if (reused != NULL && reused->context != NULL)
    xsltFreeTransformContext(reused->context);
  free(reused);
}

/* Applies a stylesheet, in a context that is reused if it is not NULL. Returns 0 with the result in `out`, to be freed
 * by tocsin_xslt_free_text; 1 on an error, with its message in tocsin_xslt_said; 2 at the memory limit; 3 at the time
 * limit. */
int tocsin_xslt_apply(xsltStylesheetPtr style, struct tocsin_context *reused, xmlDocPtr doc,
                      const struct tocsin_limits *limits, char **out, int *length) {
  *out = NULL;
  *length = 0;
  begin(NULL, 0);
  xsltTransformContextPtr context = make_context(style, reused, doc);
  if (context == NULL)
    return 1;
  context->maxTemplateDepth = limits->depth;
  context->opLimit = limits->steps;
  context->xpathCtxt->opLimit = limits->xpath_steps;
  xsltSetCtxtSecurityPrefs(preferences, context);
  xsltSetTransformErrorFunc(context, NULL, collect);
  here.used = 0;
  here.ticks = 0;
  here.bytes_max = limits->bytes;
  here.deadline = now_milliseconds() + limits->milliseconds;
  here.context = context;
  xmlDocPtr result = xsltApplyStylesheetUser(style, doc, NULL, NULL, NULL, context);
  int failed = result == NULL || context->state != XSLT_STATE_OK;
  if (!failed) {
    xmlChar *text = NULL;
    failed = xsltSaveResultToString(&text, length, result, style) != 0;
    /* An empty result has no text. */
    *out = (char *)text;
  }
  int stopped = here.stopped;
  here.context = NULL;
  if (result != NULL)
    xmlFreeDoc(result);
  /* After a failure, it is not known which fields are in order. */
  int has_succeeded = !failed && stopped == STOPPED_NOT && here.said_length == 0;
  int is_reusable = reused != NULL && has_succeeded && clear_context(reused);
  if (!is_reusable) {
    xsltFreeTransformContext(context);
    if (reused != NULL)
      reused->context = NULL;
  }
  if (stopped != STOPPED_NOT || failed) {
    if (*out != NULL)
      xmlFree(*out);
    *out = NULL;
    *length = 0;
    return stopped == STOPPED_NOT ? 1 : stopped + 1;
  }
  return 0;
}

void tocsin_xslt_free_text(char *text) { xmlFree(text); }
