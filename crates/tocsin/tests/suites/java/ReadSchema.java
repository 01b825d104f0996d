import org.apache.directory.api.ldap.model.cursor.EntryCursor;
import org.apache.directory.api.ldap.model.entry.Entry;
import org.apache.directory.api.ldap.model.message.SearchScope;
import org.apache.directory.api.ldap.model.name.Dn;
import org.apache.directory.api.ldap.model.schema.SchemaManager;
import org.apache.directory.api.ldap.schema.manager.impl.DefaultSchemaManager;
import org.apache.directory.ldap.client.api.DefaultSchemaLoader;
import org.apache.directory.ldap.client.api.LdapNetworkConnection;

/**
 * Reads the schema of the server at 127.0.0.1 with the LDAP API of Apache Directory, strictly: a definition that breaks
 * RFC 4512, or names one that is not there, is an error. Then reads entries by what it learnt. Arguments: port, password.
 */
public class ReadSchema {
    public static void main(String[] arguments) throws Exception {
        try (LdapNetworkConnection connection = new LdapNetworkConnection("127.0.0.1", Integer.parseInt(arguments[0]))) {
            connection.bind("cn=admin,o=tocsin", arguments[1]);
            SchemaManager schema = new DefaultSchemaManager(new DefaultSchemaLoader(connection, false));
            schema.setStrict();
            schema.loadAllEnabled();
            for (Throwable error : schema.getErrors()) {
                System.out.println("error: " + error);
            }
            System.out.println("attributes: " + schema.getAttributeTypeRegistry().size());
            System.out.println("classes: " + schema.getObjectClassRegistry().size());
            System.out.println("rules: " + schema.getMatchingRuleRegistry().size());
            System.out.println("syntaxes: " + schema.getLdapSyntaxRegistry().size());
            System.out.println("inetOrgPerson may: " + schema.lookupObjectClassRegistry("inetOrgPerson").getMayAttributeTypes().size());
            System.out.println("cn is a: " + schema.lookupAttributeTypeRegistry("cn").getSuperior().getName());
            connection.loadSchema();
            try (EntryCursor found = connection.search(new Dn(schema, "o=tocsin"), "(objectClass=*)", SearchScope.SUBTREE, "*", "+")) {
                for (Entry entry : found) {
                    System.out.println("entry: " + entry.getDn() + (entry.isSchemaAware() ? "" : ", read without the schema"));
                }
            }
        }
    }
}
