<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:import href="money"/>
  <xsl:output method="text"/>
  <xsl:template match="/">
    <xsl:for-each select="notifications/notification">
      <xsl:value-of select="concat(parcel, ' ', at/@date, ' ', at/@time, ' ', place)"/>
      <xsl:for-each select="items/item">
        <xsl:sort select="entry[@key='name']"/>
        <xsl:value-of select="concat('; ', entry[@key='count'], ' ', entry[@key='name'])"/>
      </xsl:for-each>
      <xsl:call-template name="money"/>
    </xsl:for-each>
  </xsl:template>
</xsl:stylesheet>
