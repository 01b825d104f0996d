/* Bindings of libxml2's XML Schema validator, in C because the library's structs differ between versions. */

#include <stdint.h>
#include <string.h>

#include <libxml/tree.h>
#include <libxml/xmlerror.h>
#include <libxml/xmlschemas.h>

#if LIBXML_VERSION >= 21200
typedef const xmlError *told;
#else
typedef xmlErrorPtr told;
#endif

enum { TOLD_MAX = 4, TOLD_BYTES = 400 };

/* The errors of a document or schema; only the first ones are kept. */
struct tocsin_objections {
  size_t count; /* of all errors, including those not kept */
  size_t marks[TOLD_MAX];
  char texts[TOLD_MAX][TOLD_BYTES];
};

/* Sets the mark of a node, a number that identifies it in errors. */
void tocsin_tree_mark(xmlNodePtr node, size_t mark) { node->_private = (void *)(uintptr_t)mark; }

static void keep(void *data, told error) {
  struct tocsin_objections *objections = data;
  if (error == NULL || error->level < XML_ERR_ERROR)
    return;
  size_t at = objections->count++;
  if (at >= TOLD_MAX)
    return;
  xmlNodePtr node = error->node;
  /* Attributes have no marks. */
  if (node != NULL && node->type == XML_ATTRIBUTE_NODE)
    node = node->parent;
  objections->marks[at] = node == NULL ? 0 : (size_t)(uintptr_t)node->_private;
  strncpy(objections->texts[at], error->message == NULL ? "" : error->message, TOLD_BYTES - 1);
  objections->texts[at][TOLD_BYTES - 1] = 0;
}

/* Compiles a schema, which borrows the document; NULL on error. */
xmlSchemaPtr tocsin_schema_compile(xmlDocPtr doc, struct tocsin_objections *objections) {
  xmlSchemaParserCtxtPtr parser = xmlSchemaNewDocParserCtxt(doc);
  if (parser == NULL)
    return NULL;
  xmlSchemaSetParserStructuredErrors(parser, (xmlStructuredErrorFunc)keep, objections);
  xmlSchemaPtr schema = xmlSchemaParse(parser);
  xmlSchemaFreeParserCtxt(parser);
  if (schema != NULL && objections->count > 0) {
    xmlSchemaFree(schema);
    schema = NULL;
  }
  return schema;
}

/* Validates a document. Returns 0 if it is valid. */
int tocsin_schema_check(xmlSchemaPtr schema, xmlDocPtr doc, struct tocsin_objections *objections) {
  xmlSchemaValidCtxtPtr context = xmlSchemaNewValidCtxt(schema);
  if (context == NULL)
    return -1;
  xmlSchemaSetValidStructuredErrors(context, (xmlStructuredErrorFunc)keep, objections);
  int outcome = xmlSchemaValidateDoc(context, doc);
  xmlSchemaFreeValidCtxt(context);
  return outcome;
}

void tocsin_schema_free(xmlSchemaPtr schema) { xmlSchemaFree(schema); }
