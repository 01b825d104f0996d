/* Bindings of libxslt for parts that Rust cannot call: struct fields and variadic functions.
 *
 * All operations are bounded. Nothing reads or writes a file or the network: the loaders serve only the given sources,
 * and all five security preferences of libxslt forbid the rest. State is per thread, so any number of threads may use
 * one stylesheet. */

#include <malloc.h>
#include <stdarg.h>
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

/* Processor time of this thread: on a busy machine the clock says nothing of a stylesheet. */
static long now_milliseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1000000;
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

static void *counted_malloc(size_t size) {
  check_bound(size);
  void *made = malloc(size);
  if (made != NULL)
    account((long)malloc_usable_size(made));
  return made;
}

static void counted_free(void *memory) {
  if (memory == NULL)
    return;
  long size = (long)malloc_usable_size(memory);
  here.bytes_live -= size;
  if (here.context != NULL)
    here.used -= size;
  free(memory);
}

static void *counted_realloc(void *memory, size_t size) {
  long before = memory == NULL ? 0 : (long)malloc_usable_size(memory);
  check_bound(size);
  void *made = realloc(memory, size);
  if (made != NULL)
    account((long)malloc_usable_size(made) - before);
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
  int wanted = vsnprintf(here.said + here.said_length, room, format, arguments);
  va_end(arguments);
  if (wanted > 0)
    here.said_length += (size_t)wanted < room ? (size_t)wanted : room - 1;
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

/* Applies a stylesheet. Returns 0 with the result in `out`, to be freed by tocsin_xslt_free_text; 1 on an error, with its
 * message in tocsin_xslt_said; 2 at the memory limit; 3 at the time limit. */
int tocsin_xslt_apply(xsltStylesheetPtr style, xmlDocPtr doc, const struct tocsin_limits *limits, char **out, int *length) {
  *out = NULL;
  *length = 0;
  begin(NULL, 0);
  xsltTransformContextPtr context = xsltNewTransformContext(style, doc);
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
  xsltFreeTransformContext(context);
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
