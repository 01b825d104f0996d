/* Schemas of XML: what cannot be said from Rust, because structures of the library differ from version to version. */

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

/* What is wrong, at most as much as anybody reads. */
struct tocsin_objections {
  size_t count; /* of all, those among them that are not kept */
  size_t marks[TOLD_MAX];
  char texts[TOLD_MAX][TOLD_BYTES];
};

/* A number by which the node is known when it is complained of. */
void tocsin_tree_mark(xmlNodePtr node, size_t mark) { node->_private = (void *)(uintptr_t)mark; }

static void keep(void *data, told error) {
  struct tocsin_objections *objections = data;
  if (error == NULL || error->level < XML_ERR_ERROR)
    return;
  size_t at = objections->count++;
  if (at >= TOLD_MAX)
    return;
  xmlNodePtr node = error->node;
  /* An attribute has no mark of its own. */
  if (node != NULL && node->type == XML_ATTRIBUTE_NODE)
    node = node->parent;
  objections->marks[at] = node == NULL ? 0 : (size_t)(uintptr_t)node->_private;
  strncpy(objections->texts[at], error->message == NULL ? "" : error->message, TOLD_BYTES - 1);
  objections->texts[at][TOLD_BYTES - 1] = 0;
}

/* Compiles a schema, which refers to the document as long as it lives; NULL if it is wrong. */
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

/* Compares a document with a schema. 0: it fits. */
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
