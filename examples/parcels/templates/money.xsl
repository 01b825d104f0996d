<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:template name="money">
    <xsl:if test="fee/@value &gt; 0">
      <xsl:value-of select="concat('; ', format-number(fee/@value, '0.00'), ' ', currency)"/>
    </xsl:if>
  </xsl:template>
</xsl:stylesheet>
