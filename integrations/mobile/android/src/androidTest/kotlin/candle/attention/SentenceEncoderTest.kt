package candle.attention

import androidx.test.ext.junit.runners.AndroidJUnit4
import org.junit.Test
import org.junit.runner.RunWith

/** The checks of `Checks.kt`, on a device. */
@RunWith(AndroidJUnit4::class)
class SentenceEncoderTest {
    @Test
    fun embeddingsAreUnitVectors() = checkEmbeddings()

    @Test
    fun searchFindsTheNearestText() = checkSearch()

    @Test
    fun errorsNameWhatIsWrong() = checkErrors()
}
